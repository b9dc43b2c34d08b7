"""Loads torch once and forks a child for each worker: 30 ms instead of 2 s.

It has one thread, runs no tensor operation and never touches CUDA: a fork would inherit their broken halves.
It ends, and its children with it, when the executor at the other end of the control socket is gone. It asks for no
parent death signal itself: that would take its workers by theirs, one by one, and leave alive what they had started.
"""

import contextlib
import ctypes
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence

import torch._dynamo  # torch itself loads it with the first optimizer, which takes a second
import torch.distributed
import torch.nn.parallel
import torch.utils.data  # noqa: F401 - all of these are for the workers

from services.executor.worker.worker_process import run_worker
from shared.loading import loading
from shared.messages.forking import (
    ForkRefused,
    ForkServerReady,
    ForkWorker,
    FromForkServer,
    WorkerForked,
    WorkerReaped,
)
from shared.messages.from_worker import ExitCode
from shared.messages.worker_frames import FrameReader, encode_frame

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_BURIAL_TIMEOUT_S = 5.0  # for a process that SIGKILL does not end, e.g. in a driver's system call
_POLL_S = 0.001


class ForkServer:
    """control: the socket to the executor; requests come one at a time, each with one file descriptor.
    preload: modules that many training functions import, where they are installed."""

    def __init__(self, control: socket.socket, *, preload: Sequence[str] = ()) -> None:
        self._control = control
        self._preload = preload
        self._frames = FrameReader()
        self._workers: set[int] = set()
        self._wakeup, self._signalled = socket.socketpair()

    def serve(self) -> None:
        """Until the executor is gone."""
        self._watch_children()
        _adopt_orphans()
        with loading():  # what is loaded then stays: collections in the children leave its pages shared
            for module in self._preload:
                with contextlib.suppress(ImportError):
                    importlib.import_module(module)
        self._send(ForkServerReady())
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wakeup in ready:
                    self._wakeup.recv(4096)
                    self._reap()
                if self._control in ready and not self._serve_request():
                    break
        for pid in self._workers:
            _end_group(pid)

    def _watch_children(self) -> None:
        """Each SIGCHLD becomes a byte on the wake-up socket; the handler itself has nothing to do."""
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _serve_request(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
        except ConnectionResetError:  # it died with an answer of ours unread
            return False
        if not data:
            return False
        for request in self._frames.feed(data):
            assert isinstance(request, ForkWorker)
            self._fork(request, fds.pop())
        return True

    def _fork(self, request: ForkWorker, channel_fd: int) -> None:
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(channel_fd)
            return self._send(ForkRefused(request=request.request, reason=f"fork: {error}"))
        if pid == 0:
            self._become_worker(server_pid, channel_fd)
        os.close(channel_fd)
        with contextlib.suppress(OSError):  # the child does the same: whoever is first
            os.setpgid(pid, pid)
        self._workers.add(pid)
        return self._send(WorkerForked(request=request.request, pid=pid))

    def _become_worker(self, server_pid: int, channel_fd: int) -> None:
        try:
            _die_with_parent()
            if os.getppid() != server_pid:
                return
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, self._wakeup, self._signalled):
                inherited.close()
            os.set_inheritable(channel_fd, False)
            run_worker(socket.socket(fileno=channel_fd))
        finally:
            os._exit(ExitCode.FAILED)

    def _reap(self) -> None:
        """Tell of each worker that ended, once what it may have started is gone too."""
        while (ended := _next_ended()) is not None:
            pid = ended.si_pid
            if pid not in self._workers:
                os.waitpid(pid, 0)  # a worker's, adopted; nobody here knows it
                continue
            _end_group(pid)
            self._workers.discard(pid)
            exited = ended.si_code == os.CLD_EXITED
            self._send(
                WorkerReaped(
                    pid=pid,
                    exit_code=ended.si_status if exited else None,
                    signal=None if exited else ended.si_status,
                )
            )

    def _send(self, message: FromForkServer) -> None:
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # the executor is gone: the next read says so
            self._control.sendall(encode_frame(message))


def _die_with_parent() -> None:
    """SIGKILL when the parent dies (Linux); elsewhere the end of file on the socket must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _adopt_orphans() -> None:
    """What a worker leaves behind becomes a child of this process (Linux), which can then wait for its end."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _next_ended() -> "os.waitid_result | None":
    """A child that has ended, still to be buried."""
    with contextlib.suppress(ChildProcessError):  # there is no child at all
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None


def _end_group(leader: int) -> None:
    """Kill a worker's group and bury it. Its data loader's processes, too, hold memory of its GPU.

    Killed first, while the leader still holds its number, alive or as a zombie: no stranger can have it.
    """
    _kill_group(leader)
    give_up_s = time.monotonic() + _BURIAL_TIMEOUT_S
    with contextlib.suppress(ChildProcessError):  # all are buried
        while time.monotonic() < give_up_s:
            if os.waitpid(-leader, os.WNOHANG) == (0, 0):
                time.sleep(_POLL_S)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
        os.killpg(pid, signal.SIGKILL)
