"""The worker's end of its channel: a thread reads, whoever has something to say writes.

The executor's end closes only when the executor is gone. The worker then kills itself and everything it has
started, at once: nobody else would. It does the same when its lease runs out: an executor that is stopped or stuck,
or sees no more of the ledger, is counted as lost, and its jobs are soon placed elsewhere.
"""

import contextlib
import math
import os
import queue
import select
import signal
import socket
import threading
from collections import defaultdict
from pathlib import Path

import structlog

from services.executor.boot_clock import boot_s
from services.executor.worker.log_file import write_output_to
from shared.messages.detection import DetectionTimes
from shared.messages.from_worker import ExitCode, FromWorker
from shared.messages.to_worker import (
    Assignment,
    ChangeMembership,
    JoinRendezvous,
    LeaseExtended,
    PeersLost,
    SaveCheckpoint,
    StopAtBoundary,
    WarmUp,
    WriteLog,
)
from shared.messages.worker_frames import BrokenChannel, FrameReader, encode_frame

log = structlog.get_logger()


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._writing = threading.Lock()
        self._orders: queue.SimpleQueue[WarmUp | Assignment] = queue.SimpleQueue()
        self._addresses: defaultdict[int, queue.SimpleQueue[str]] = defaultdict(
            queue.SimpleQueue
        )  # by generation
        self._changes: queue.SimpleQueue[ChangeMembership] = queue.SimpleQueue()
        self._losses: queue.SimpleQueue[PeersLost] = queue.SimpleQueue()
        self._stop_requested = threading.Event()
        self._checkpoint_request = 0
        self._has_state_to_save = False
        self._lease_s, self._lease_until_s = 0.0, math.inf
        self._look_s = DetectionTimes().look_s
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def send(self, message: FromWorker) -> None:
        """From any thread. An executor that is gone ends this process."""
        try:
            with self._writing:
                self._socket.sendall(encode_frame(message))
        except OSError:
            _end_process_group()

    def receive_order(self) -> WarmUp | Assignment:
        """The next, however long it takes."""
        return self._orders.get()

    def receive_rendezvous(self, generation: int, timeout_s: float) -> str:
        """host:port of rank 0 of this generation. Raises queue.Empty if it does not come in time."""
        return self._addresses[generation].get(timeout=timeout_s)

    def newest_change(self, wait_s: float = 0.0) -> ChangeMembership | None:
        """The last that came since this was asked, if one did."""
        newest = None
        with contextlib.suppress(queue.Empty):
            newest = self._changes.get(timeout=wait_s) if wait_s else self._changes.get_nowait()
            while True:
                newest = self._changes.get_nowait()
        return newest

    def receive_loss(self) -> PeersLost:
        """The next, however long it takes."""
        return self._losses.get()

    @property
    def checkpoint_request(self) -> int:
        """What asks for a checkpoint; 0: nothing."""
        return self._checkpoint_request

    def take_checkpoint_request(self) -> int:
        """The same, once. One that comes at this moment takes the place of the one before, and is taken with it."""
        request, self._checkpoint_request = self._checkpoint_request, 0
        return request

    @property
    def fading_lease_until_s(self) -> float:
        """The end of a lease that nobody has extended for half of its time; 0: there is none."""
        until_s = self._lease_until_s
        return until_s if boot_s() > until_s - self._lease_s / 2 else 0.0

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested.is_set()

    def request_stop(self) -> None:
        """Stop at the next step boundary; before the first step that is now. Also a signal handler."""
        self._stop_requested.set()
        if not self._has_state_to_save:
            self._exit_before_first_step()

    def wait_for_stop(self) -> None:
        """The executor decides how this worker ends."""
        self._stop_requested.wait()

    def begin_training(self) -> None:
        """From here on a stop waits for a step boundary."""
        self._has_state_to_save = True  # written before the flag is read; request_stop does it in reverse
        if self._stop_requested.is_set():
            self._exit_before_first_step()

    def _exit_before_first_step(self) -> None:
        log.info("stopped_before_first_step")
        os._exit(ExitCode.DONE)

    def _read(self) -> None:
        try:
            self._hear()
        except BrokenChannel as error:
            # What it should do it will never know, and nobody else would say so.
            _say_last(f"this worker cannot read what its executor says, and ends itself: {error}\n".encode())
            os._exit(ExitCode.UNREADABLE)
        _end_process_group()

    def _hear(self) -> None:
        """Until the end of the file or of the lease. Raises BrokenChannel."""
        frames = FrameReader()
        while data := self._receive():
            for message in frames.feed(data):
                match message:
                    case WarmUp():
                        self._orders.put(message)
                    case WriteLog(file=file):
                        write_output_to(Path(file))
                    case Assignment():
                        self._look_s = message.detection.look_s
                        if message.leased:
                            self._lease_s = message.detection.lease_s
                            self._lease_until_s = boot_s() + self._lease_s
                        self._orders.put(message)
                    case ChangeMembership():
                        self._changes.put(message)
                    case JoinRendezvous(generation=generation, address=address):
                        self._addresses[generation].put(address)
                    case PeersLost():
                        self._losses.put(message)
                    case StopAtBoundary():
                        self.request_stop()
                    case SaveCheckpoint(request=request):
                        self._checkpoint_request = request
                    case LeaseExtended(until_s=until_s):
                        self._lease_until_s = until_s
                    case _:
                        raise BrokenChannel(f"a worker is never told {type(message).__name__}")

    def _receive(self) -> bytes:
        """What comes next; nothing at the end of the file or of the lease. A word that is here counts, however late
        this thread got to hear it."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while not poll.poll(self._look_s * 1000):  # it does not count the time that a machine sleeps
            if boot_s() > self._lease_until_s:
                _say_last(b"the executor has not extended the lease: this worker ends itself\n")
                return b""
        try:
            return self._socket.recv(65_536)
        except OSError:
            return b""


def _say_last(words: bytes) -> None:
    """Past the buffers, whose locks the training may hold."""
    with contextlib.suppress(OSError):
        os.write(2, words)


def _end_process_group() -> None:
    os.killpg(0, signal.SIGKILL)
