"""The worker's end of its channel: a thread reads, whoever has something to say writes.

The executor's end closes only when the executor is gone. The worker then kills itself and everything it has
started, at once: nobody else would.
"""

import os
import queue
import signal
import socket
import threading

import structlog

from shared.messages.worker_channel import (
    Assignment,
    ExitCode,
    FrameReader,
    FromWorker,
    JoinRendezvous,
    StopAtBoundary,
    encode_frame,
)

log = structlog.get_logger()


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._writing = threading.Lock()
        self._assignments: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
        self._addresses: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._stop_requested = threading.Event()
        self._has_state_to_save = False
        threading.Thread(target=self._read, name="channel", daemon=True).start()

    def send(self, message: FromWorker) -> None:
        """From any thread. An executor that is gone ends this process."""
        try:
            with self._writing:
                self._socket.sendall(encode_frame(message))
        except OSError:
            _end_process_group()

    def receive_assignment(self) -> Assignment:
        return self._assignments.get()

    def receive_rendezvous(self, timeout_s: float) -> str:
        """host:port of rank 0. Raises queue.Empty if it does not come in time."""
        return self._addresses.get(timeout=timeout_s)

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested.is_set()

    def request_stop(self) -> None:
        """Stop at the next step boundary; before the first step that is now. Also a signal handler."""
        self._stop_requested.set()
        if not self._has_state_to_save:
            self._exit_before_first_step()

    def begin_training(self) -> None:
        """From here on a stop waits for a step boundary."""
        self._has_state_to_save = True  # written before the flag is read; request_stop does it in reverse
        if self._stop_requested.is_set():
            self._exit_before_first_step()

    def _exit_before_first_step(self) -> None:
        log.info("stopped_before_first_step")
        os._exit(ExitCode.DONE)

    def _read(self) -> None:
        frames = FrameReader()
        while data := self._receive():
            for message in frames.feed(data):
                match message:
                    case Assignment():
                        self._assignments.put(message)
                    case JoinRendezvous(address=address):
                        self._addresses.put(address)
                    case StopAtBoundary():
                        self.request_stop()
                    case _:
                        raise AssertionError(f"a worker is never told {type(message).__name__}")
        _end_process_group()

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(65_536)
        except OSError:
            return b""


def _end_process_group() -> None:
    os.killpg(0, signal.SIGKILL)
