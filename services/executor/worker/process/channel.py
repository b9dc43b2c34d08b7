"""The worker's end of its channel to the executor: one thread reads, any thread writes.

The executor's end closes only when the executor is gone. The worker then kills itself and its process group at once,
because no other process would. It does the same when its lease expires: an executor that is stopped, stuck or cut off
from the ledger is counted as lost, and its jobs are soon placed elsewhere.
"""

import contextlib
import math
import os
import queue
import select
import socket
import threading
from collections import defaultdict
from pathlib import Path
from typing import Protocol, get_args

from elasticflow.services.executor.worker.process.commands import run_command, write_stacks
from elasticflow.services.executor.worker.process.exit_handlers import EXIT_HANDLERS, ON_THE_WAY_S
from elasticflow.services.executor.worker.process.log_file import keep_flight_records_beside, write_output_to
from elasticflow.services.executor.worker.process.users_process import PROCESS
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, FromWorker
from elasticflow.shared.messages.worker_protocol.to_worker import (
    MAX_FILES,
    NUM_FILES,
    Assignment,
    JoinRendezvous,
    LeaseExtended,
    PeersLost,
    PrepareSwitch,
    RunCommand,
    ShowStacks,
    StopAtBoundary,
    ToWorker,
    WarmUp,
    WriteCheckpoint,
    WriteLog,
)
from elasticflow.shared.messages.worker_protocol.training_tasks import FromManager
from elasticflow.shared.runtime.process.clock import boot_s
from elasticflow.shared.runtime.process.isolation.isolated_process import WorkerFolders
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.process.process_termination import kill_own_process_group


class ExecutorLink(Protocol):
    """What a worker needs to meet others and to report; a training without an executor has another one."""

    def send(self, message: FromWorker | FromManager) -> None: ...
    def receive_rendezvous_address(self, generation: int, timeout_s: float) -> str: ...


class Channel:
    """received: bytes that were read from the socket before. folders: of an isolated worker."""

    def __init__(self, sock: socket.socket, received: bytes = b"", folders: WorkerFolders | None = None) -> None:
        self._socket = sock
        self._folders = folders or WorkerFolders()
        self._received = received
        self._files = list[int]()  # that have come, and belong to a message that may not be complete
        self._writing = threading.Lock()
        self._commands: queue.SimpleQueue[WarmUp | Assignment] = queue.SimpleQueue()
        # by generation
        self._addresses: defaultdict[int, queue.SimpleQueue[str]] = defaultdict(queue.SimpleQueue)
        self._changes: queue.SimpleQueue[PrepareSwitch] = queue.SimpleQueue()
        self._losses: queue.SimpleQueue[PeersLost] = queue.SimpleQueue()
        self._stop_requested = threading.Event()
        self._keeps_state = True
        self._checkpoint_request = self._model_request = 0
        self._has_state_to_save = False
        self._lease_s, self._lease_until_s = 0.0, math.inf
        self._poll_interval_s = FailureTimeouts().poll_interval_s
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def send(self, message: FromWorker | FromManager) -> None:
        """Callable from any thread. Ends this process if the executor is gone. A process that users' code has forked
        sends nothing: it does not speak for the worker."""
        if PROCESS.is_forked:
            return
        try:
            with self._writing:
                self._socket.sendall(encode_frame(message))
        except OSError:
            kill_own_process_group()

    def receive_command(self) -> WarmUp | Assignment:
        """The next one; waits without a timeout."""
        return self._commands.get()

    def receive_rendezvous_address(self, generation: int, timeout_s: float) -> str:
        """host:port of rank 0 of this generation. Raises queue.Empty on timeout."""
        return self._addresses[generation].get(timeout=timeout_s)

    def newest_prepare_switch(self, wait_s: float = 0.0) -> PrepareSwitch | None:
        """The newest one since the last call, or None."""
        newest = None
        with contextlib.suppress(queue.Empty):
            newest = self._changes.get(timeout=wait_s) if wait_s else self._changes.get_nowait()
            while True:
                newest = self._changes.get_nowait()
        return newest

    def receive_loss(self) -> PeersLost:
        """The next one; waits without a timeout."""
        return self._losses.get()

    @property
    def checkpoint_request(self) -> int:
        """The requested checkpoint; 0: none."""
        return self._checkpoint_request

    @property
    def model_request(self) -> int:
        """The newest requested checkpoint of which the model alone is wanted, too; 0: none."""
        return self._model_request

    def take_checkpoint_request(self) -> int:
        """Return the request and clear it. A request that arrives meanwhile replaces the earlier one and is taken with
        it."""
        request, self._checkpoint_request = self._checkpoint_request, 0
        return request

    @property
    def expiring_lease_until_s(self) -> float:
        """The end of a lease that was not extended for half of its duration; 0: there is none."""
        until_s = self._lease_until_s
        return until_s if boot_s() > until_s - self._lease_s / 2 else 0.0

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested.is_set()

    @property
    def keeps_state(self) -> bool:
        """False once this worker must stop because its job has ended: nothing continues from its state."""
        return self._keeps_state

    def request_stop(self, *, keeps_state: bool = True) -> None:
        """Stop at the next step boundary, or at once before the first step. Also a signal handler."""
        self._keeps_state = keeps_state  # written before the request is read
        self._stop_requested.set()
        if not self._has_state_to_save:  # in a thread of its own: this one reads how long the lease is
            threading.Thread(target=self._exit_before_first_step, name="stop", daemon=True).start()

    def wait_for_stop(self) -> None:
        """The executor decides how this worker ends."""
        self._stop_requested.wait()

    def begin_training(self) -> None:
        """Let a stop wait for a step boundary from here on."""
        self._has_state_to_save = True  # written before the flag is read; request_stop does it in reverse
        if self._stop_requested.is_set():
            self._exit_before_first_step()

    def _exit_before_first_step(self) -> None:
        log.info("stopped_before_first_step")
        EXIT_HANDLERS.run(ON_THE_WAY_S)
        os._exit(ExitCode.DONE)

    def _read(self) -> None:
        try:
            self._handle_messages()
        except BrokenChannel as error:
            # The message is lost, and no other process could report that.
            _write_last_message(f"this worker cannot decode a message of its executor, and exits: {error}\n".encode())
            os._exit(ExitCode.UNREADABLE)
        except OSError as error:  # of the job's folders, which its node cannot show
            _write_last_message(f"this worker cannot use the folders of its job, and exits: {error}\n".encode())
            os._exit(ExitCode.DEVICE_UNUSABLE)
        kill_own_process_group()

    def _handle_messages(self) -> None:
        """Handle messages until the end of the file or of the lease. Raises BrokenChannel."""
        frames = FrameReader[ToWorker](*get_args(ToWorker))
        assignment: Assignment | None = None  # waits for a lease that is not over
        while data := self._take_received() or self._receive():
            for message in frames.feed(data):
                match message:
                    case WarmUp():
                        self._commands.put(message)
                    case WriteLog(file=file):
                        self._folders.show(writable=[str(Path(file).parent)])
                        write_output_to(Path(file))
                        keep_flight_records_beside(Path(file))
                    case Assignment():
                        self._folders.show(readable=message.read_folders, writable=[message.checkpoint_dir])
                        self._folders.close()
                        self._poll_interval_s = message.timeouts.poll_interval_s
                        if message.lease_until_s:
                            self._lease_s, self._lease_until_s = message.timeouts.lease_s, message.lease_until_s
                        assignment = message
                    case PrepareSwitch():
                        self._changes.put(message)
                    case JoinRendezvous(generation=generation, address=address):
                        self._addresses[generation].put(address)
                    case PeersLost():
                        self._losses.put(message)
                    case StopAtBoundary(keeps_state=keeps_state):
                        self.request_stop(keeps_state=keeps_state)
                    case WriteCheckpoint(request=request, with_model=with_model):
                        if with_model:  # written before the request is read
                            self._model_request = request
                        self._checkpoint_request = request
                    case LeaseExtended(until_s=until_s):
                        self._lease_until_s = until_s
                    case ShowStacks():
                        write_stacks(self._take_files(message))
                    case RunCommand():
                        run_command(message, self._take_files(message))
                    case _:
                        raise BrokenChannel(f"unexpected message for a worker: {type(message).__name__}")
            if assignment is not None and boot_s() <= self._lease_until_s:
                self._commands.put(assignment)
                assignment = None

    def _take_files(self, message: ShowStacks | RunCommand) -> list[int]:
        """Raises BrokenChannel if they have not come with it."""
        number = NUM_FILES[type(message)]
        if len(self._files) < number:
            raise BrokenChannel(f"{type(message).__name__} came without its files")
        taken, self._files = self._files[:number], self._files[number:]
        return taken

    def _take_received(self) -> bytes:
        received, self._received = self._received, b""
        return received

    def _receive(self) -> bytes:
        """The next bytes; empty at the end of the file or of the lease. Bytes that have arrived count, however late
        this thread reads them."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not poll.poll(self._poll_interval_s * 1000):  # not counting the time for which a machine sleeps
            if boot_s() > self._lease_until_s:
                _write_last_message(b"the lease has expired without an extension by the executor: this worker exits\n")
                return b""
        try:
            data, files, _, _ = socket.recv_fds(self._socket, 65_536, MAX_FILES)
        except OSError:
            return b""
        self._files += files
        return data


def _write_last_message(words: bytes) -> None:
    """Bypasses the buffers, whose locks the training may hold."""
    with contextlib.suppress(OSError):
        os.write(2, words)
