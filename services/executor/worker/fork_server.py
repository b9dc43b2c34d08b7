"""Loads torch once and forks a child for each worker or runner: 30 ms instead of 2 s.

It has one thread, runs no tensor operation and never touches CUDA, since a fork would inherit half of their state. It
ends with its children when the executor at the other end of the control socket is gone, or its keeper. It sets no
parent death signal for itself: its death would kill the workers one by one, and their own children would survive.
"""

import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

import torch._dynamo  # torch loads it with the first optimizer, which takes a second
import torch.distributed
import torch.nn.parallel
import torch.utils.data  # noqa: F401 - all of these are for the workers

from elasticflow.services.executor.worker.loop.run_worker import run_worker
from elasticflow.services.executor.worker.tasks.run_tasks import run_tasks
from elasticflow.shared.library_imports import without_gc
from elasticflow.shared.messages.worker_protocol.forking import (
    EnterEnvironment,
    FetchData,
    ForkFailed,
    ForkServerReady,
    ForkWorker,
    FromForkServer,
    FromPreparer,
    InstallPackages,
    Isolation,
    MakeEnvironment,
    ToPreparer,
    WorkerForked,
    WorkerReaped,
)
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.task_running import RunTasks
from elasticflow.shared.messages.worker_protocol.to_worker import ToWorker
from elasticflow.shared.runtime.process.environment_python import interpreter_of, variables_in
from elasticflow.shared.runtime.process.isolation.isolated_process import (
    SIGNAL_EXIT_CODE,
    WorkerFolders,
    enter_isolation,
    fork_isolated,
)
from elasticflow.shared.runtime.process.process_termination import (
    adopt_orphans,
    die_with_parent,
    end_adopted,
    kill_and_reap_process_group,
    kill_own_process_group,
)
from elasticflow.shared.runtime.process.run_module import module_command

ENTRY = "elasticflow.services.executor.worker"
ENTERED = "--entered"  # the argument of a process that a worker becomes in an environment of its own
_REAP_TIMEOUT_S = 5.0  # for a process that SIGKILL does not end, e.g. in a driver's system call


class ForkServer:
    """control: the socket to the executor; each request carries one file descriptor.

    keeper: a descriptor whose end of file says that the keeper is gone.
    preload: modules that many training functions import; skipped if not installed, or if they cannot be imported, as
    among other versions in the environment of a job.
    """

    def __init__(self, control: socket.socket, *, keeper: int, preload: Sequence[str] = ()) -> None:
        self._control, self._keeper = control, keeper
        self._preload = preload
        self._frames = FrameReader(ForkWorker)
        self._workers: dict[int, Isolation | None] = {}
        self._wakeup, self._signalled = socket.socketpair()

    def serve(self) -> None:
        """Serve requests until the executor or the keeper is gone."""
        self._watch_children()
        adopt_orphans()
        with without_gc():  # and kept out of later collections, so that children share its pages
            for module in self._preload:
                try:
                    importlib.import_module(module)
                except ImportError:
                    pass
                except Exception:  # workers go on without it, and the log has the reason
                    traceback.print_exc()
        self._send(ForkServerReady())
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            selector.register(self._keeper, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._wakeup in ready:
                    self._wakeup.recv(4096)
                    self._reap()
                if self._keeper in ready or (self._control in ready and not self._serve_request()):
                    break
        for pid in self._workers:
            kill_and_reap_process_group(pid, timeout_s=_REAP_TIMEOUT_S)
        self._workers.clear()
        end_adopted(timeout_s=_REAP_TIMEOUT_S)

    def _watch_children(self) -> None:
        """Each SIGCHLD writes a byte to the wake-up socket; the handler itself is empty."""
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _serve_request(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 65_536, 1)
        except ConnectionResetError:  # the executor died with an unread reply
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
            pid = os.fork() if request.isolation is None else fork_isolated(request.isolation)
        except OSError as error:
            os.close(channel_fd)
            return self._send(ForkFailed(request=request.request, reason=f"fork: {error}"))
        if pid == 0:
            self._become_worker(server_pid, channel_fd, request.isolation)
        os.close(channel_fd)
        with contextlib.suppress(OSError):  # the child does the same, whichever is first
            os.setpgid(pid, pid)
        self._workers[pid] = request.isolation
        return self._send(WorkerForked(request=request.request, pid=pid))

    def _become_worker(self, server_pid: int, channel_fd: int, isolation: Isolation | None) -> None:
        code = ExitCode.FAILED
        try:
            die_with_parent(0 if _has_namespaces(isolation) else server_pid)  # the first process sees no parent
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for inherited in (self._control, self._wakeup, self._signalled):
                inherited.close()
            os.close(self._keeper)
            os.set_inheritable(channel_fd, False)
            code = ExitCode.DEVICE_UNUSABLE  # a machine that refuses is not the job's fault
            adopt_orphans()  # of this worker, so that the server knows whose they are when they come to it
            folders = WorkerFolders() if isolation is None else enter_isolation(isolation)
            code = ExitCode.FAILED
            run_forked(socket.socket(fileno=channel_fd), folders)
        except OSError as error:
            print(f"no worker: {error}", file=sys.stderr, flush=True)
        except BaseException:  # nothing else would show it
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _reap(self) -> None:
        """Report each worker that has ended, once its process group and all other descendants are gone too."""
        while (ended := _next_ended()) is not None:
            pid = ended.si_pid
            if pid not in self._workers:
                os.waitpid(pid, 0)  # adopted: a worker had started it
                continue
            kill_and_reap_process_group(pid, timeout_s=_REAP_TIMEOUT_S)
            isolation = self._workers.pop(pid)
            # what it has left in other sessions: while it lives, its orphans are its own
            if not end_adopted(self._workers, timeout_s=_REAP_TIMEOUT_S):
                print(f"processes that worker {pid} has started do not end", file=sys.stderr, flush=True)
            self._send(_how_it_ended(ended, isolation))

    def _send(self, message: FromForkServer) -> None:
        # the executor is gone: the next read reports it
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(encode_frame(message))


def _has_namespaces(isolation: Isolation | None) -> bool:
    return isolation is not None and isolation.namespaces


def _how_it_ended(ended: os.waitid_result, isolation: Isolation | None) -> WorkerReaped:
    if ended.si_code != os.CLD_EXITED:
        return WorkerReaped(pid=ended.si_pid, exit_code=None, signal=ended.si_status)
    if _has_namespaces(isolation) and ended.si_status > SIGNAL_EXIT_CODE:
        return WorkerReaped(pid=ended.si_pid, exit_code=None, signal=ended.si_status - SIGNAL_EXIT_CODE)
    return WorkerReaped(pid=ended.si_pid, exit_code=ended.si_status, signal=None)


def _next_ended() -> "os.waitid_result | None":
    """A child that has ended and is not yet reaped."""
    with contextlib.suppress(ChildProcessError):  # there is no child at all
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return None


# --- a child's first message --------------------------------------------------------------------------
# A child of the fork server: its first message says if it becomes a worker, also one in an environment of its own, a
# runner, an installer or a fetcher.


_NICENESS = 10  # of preparers: workers come first


def run_forked(sock: socket.socket, folders: WorkerFolders, received: bytes = b"") -> NoReturn:
    """Wait for the first message, without a timeout, and do what it says. sock: the channel to the executor.

    received: what was already read from it.
    """
    kinds = *get_args(ToWorker), RunTasks, *get_args(ToPreparer), EnterEnvironment
    frames = FrameReader[ToWorker | RunTasks | ToPreparer | EnterEnvironment](*kinds)
    data = received or _receive(sock)
    received = b""
    while True:
        received += data
        try:
            first = next(frames.feed(data), None)
        except BrokenChannel:  # a worker reports it
            break
        if first is not None:
            _obey(first, sock, folders, received, frames.unread)
            break
        data = _receive(sock)
    run_worker(sock, received, folders)


def _obey(first: object, sock: socket.socket, folders: WorkerFolders, received: bytes, unread: bytes) -> None:
    """Become something else than a worker; return if it is a message for one. Preparers are imported here: workers
    need none of their libraries."""
    match first:
        case RunTasks():
            run_tasks(sock, first, received, folders)
        case InstallPackages():
            from elasticflow.services.executor.worker.preparation.install_packages import install_packages

            _prepare(sock, first.folder, folders, lambda: install_packages(first))
        case MakeEnvironment():
            from elasticflow.services.executor.worker.preparation.make_environment import make_environment

            _prepare(sock, first.folder, folders, lambda: make_environment(first))
        case FetchData():
            from elasticflow.services.executor.worker.preparation.fetch_data import fetch_data

            _prepare(sock, first.folder, folders, lambda: fetch_data(first))
        case EnterEnvironment():
            _enter(sock, first, folders, unread)
        case _:
            return


def _prepare(sock: socket.socket, folder: str, folders: WorkerFolders, prepare: Callable[[], FromPreparer]) -> NoReturn:
    """Reply once, and exit. Killed by its executor if it takes too long or fills the disk."""
    folders.show(writable=[folder])
    folders.close()
    os.nice(_NICENESS)
    sock.sendall(encode_frame(prepare()))
    os._exit(ExitCode.DONE)


def _enter(sock: socket.socket, order: EnterEnvironment, folders: WorkerFolders, unread: bytes) -> NoReturn:
    """Become a process of this environment's Python, which reads on from the channel. Its code is the user's, so all
    folders are shown before."""
    folders.show(readable=[order.folder, *order.readable], writable=order.writable)
    folders.close()
    with tempfile.TemporaryFile() as rest:
        rest.write(unread)
        rest.seek(0)
        inherited = str(sock.fileno()), str(rest.fileno())
        for descriptor in map(int, inherited):
            os.set_inheritable(descriptor, True)
        folder = Path(order.folder)
        command = module_command(ENTRY, ENTERED, *inherited, python=interpreter_of(folder))
        os.execve(command[0], command, variables_in(folder, os.environ))


def run_entered(channel_fd: int, rest_fd: int) -> NoReturn:
    """What the new process does: it has the namespaces and the rights of the worker that has become it."""
    os.set_inheritable(channel_fd, False)
    with os.fdopen(rest_fd, "rb") as rest:
        unread = rest.read()
    run_forked(socket.socket(fileno=channel_fd), WorkerFolders(), unread)


def _receive(sock: socket.socket) -> bytes:
    """The next bytes. Ends this process if the executor is gone."""
    with contextlib.suppress(OSError):
        if data := sock.recv(65_536):
            return data
    kill_own_process_group()
    raise AssertionError("SIGKILL has no effect")
