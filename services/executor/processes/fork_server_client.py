"""The launcher's client of the fork server, a process that forks workers and reports how each ended."""

import asyncio
import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar, get_args

import psutil

from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.shared.errors import Retry, Stop
from elasticflow.shared.messages.worker_protocol.forking import (
    ForkFailed,
    ForkServerReady,
    ForkWorker,
    FromForkServer,
    Isolation,
    WorkerForked,
    WorkerReaped,
)
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, ChannelMessage, FrameReader, encode_frame
from elasticflow.shared.runtime.process.environment_python import interpreter_of, variables_in
from elasticflow.shared.runtime.process.process_termination import kill_process_group
from elasticflow.shared.runtime.process.run_module import module_command

# --- reaper --------------------------------------------------------------------------------------------
# Finds and kills worker processes, so that none outlives its executor. Blocking: call it from a thread.
#
# Every worker inherits marks in its environment that name its node; they remain when its parents are gone.

_POLL_S = 0.01


@dataclass(eq=False)
class WorkersSurvived(Stop):
    """SIGKILL does not end these processes, e.g. in a driver's system call: their GPUs are not free."""

    pids: list[int]

    MESSAGE: ClassVar[str] = "processes {pids} do not end on SIGKILL; their GPUs are not free: restart the node"


def cpu_s_if_stopped(pid: int) -> float | None:
    """CPU time of a process that a signal has stopped; None if it is gone or not stopped."""
    try:
        process = psutil.Process(pid)
        return sum(process.cpu_times()[:2]) if process.status() == psutil.STATUS_STOPPED else None
    except psutil.Error:
        return None


def marked_processes(marks: Mapping[str, str]) -> list[psutil.Process]:
    """Running processes whose environment holds all of these marks."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and marks.items() <= process.environ().items():
                found.append(process)
    return found


def kill_marked(marks: Mapping[str, str], *, timeout_s: float = 10.0) -> list[int]:
    """SIGKILL to all marked processes until none runs. Returns their pids; raises WorkersSurvived."""
    killed: dict[int, None] = {}
    give_up_s = time.monotonic() + timeout_s
    while processes := marked_processes(marks):  # repeated: one may have forked in between
        if time.monotonic() > give_up_s:
            raise WorkersSurvived([process.pid for process in processes])
        for process in processes:
            killed[process.pid] = None
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(_POLL_S)
    return list(killed)


def wait_until_gone(pids: Iterable[int], *, timeout_s: float = 10.0) -> None:
    """Return once none of these processes runs. Raises WorkersSurvived."""
    give_up_s = time.monotonic() + timeout_s
    while alive := [pid for pid in pids if _is_alive(pid)]:
        if time.monotonic() > give_up_s:
            raise WorkersSurvived(alive)
        time.sleep(_POLL_S)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


# --- fork server client --------------------------------------------------------------------------------

_LOAD_TIMEOUT_S = 120.0  # importing torch from a cold disk
_END_TIMEOUT_S = 5.0
_NEEDED = {  # by workers, in their environment
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # a process with threads must not fork
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # nor one that touched CUDA: torch.cuda.is_available() would
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as NVML counts, which named the type of each GPU
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, sums of products differ from call to call
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The worker and its process group are gone; nothing follows. Either code or signal is None."""

    code: int | None
    signal: int | None


@dataclass(eq=False)
class LaunchFailed(Retry):
    reason: str
    log_file: str

    MESSAGE: ClassVar[str] = "no worker process could be started: {reason}; see {log_file}"


class Fork(NamedTuple):
    """A new worker: its process id, and a future of its end."""

    pid: int
    exited: asyncio.Future[Exited]


class ForkServerClient:
    """The process that forks workers."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, isolation: WorkerIsolation) -> None:
        self._process = process
        self._isolation = isolation
        self._new_cgroups: dict[int, Path] = {}  # by request, until its reply
        self._cgroups: dict[int, Path] = {}  # by pid
        self._control = control
        self._ready = asyncio.get_running_loop().create_future()
        self._is_loading = True
        self._requests = itertools.count()
        self._replies: dict[int, asyncio.Future[Fork]] = {}
        self._exits: dict[int, asyncio.Future[Exited]] = {}
        self._reading = asyncio.create_task(self._read(), name="fork server control")

    @classmethod
    async def start(
        cls,
        marks: dict[str, str],
        log_file: Path,
        preload: Sequence[str],
        isolation: WorkerIsolation,
        environment: Path | None = None,
    ) -> "ForkServerClient":
        """Return once the fork server has loaded its libraries. environment: of a job; None: the node's. Raises
        LaunchFailed."""
        python = sys.executable if environment is None else interpreter_of(environment)
        inherited = isolation.environment(os.environ)
        inherited = inherited if environment is None else variables_in(environment, inherited)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.to_thread(log_file.parent.mkdir, parents=True, exist_ok=True)
        with theirs, log_file.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *module_command("elasticflow.services.executor.worker", str(theirs.fileno()), *preload, python=python),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited | _NEEDED | marks,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the executor
            )
        server = cls(process, ours, isolation)
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await server._ready
        except (TimeoutError, EOFError, asyncio.CancelledError) as error:
            await server.end()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise LaunchFailed("the fork server did not start", str(log_file)) from error
        return server

    async def fork(self, channel: socket.socket, slots: Sequence[int]) -> "Fork":
        """Fork a worker that inherits this end of a channel. slots: see `WorkerIsolation`. Raises EOFError, OSError."""
        if self._reading.done():
            raise EOFError("the fork server has died")
        request = next(self._requests)
        reply = self._replies[request] = asyncio.get_running_loop().create_future()
        try:
            frame = encode_frame(ForkWorker(request=request, isolation=self._isolation_of(request, slots)))
            socket.send_fds(self._control, [frame], [channel.fileno()])
            return await reply
        finally:  # after a late reply, the worker ends with its channel
            del self._replies[request]

    def _isolation_of(self, request: int, slots: Sequence[int]) -> Isolation | None:
        """The isolation of a worker, with a new control group where this node has them. Raises OSError."""
        isolation, cgroups = self._isolation.of_process(slots), self._isolation.cgroups
        if isolation is None or cgroups is None:
            return isolation
        group = self._new_cgroups[request] = cgroups.add()
        return replace(isolation, cgroup=str(group))

    def _end_cgroup(self, group: Path | None) -> None:
        if group is not None and self._isolation.cgroups is not None:
            self._isolation.cgroups.end(group)

    async def ended(self) -> None:
        await asyncio.wait({self._reading})

    async def end(self) -> None:
        """Kill the server and its workers, wait until they are gone, and resolve the futures of their ends."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
        pids = list(self._exits)
        for pid in pids:
            kill_process_group(pid)
        await self._end_process()
        await asyncio.to_thread(wait_until_gone, pids)
        for group in (*self._new_cgroups.values(), *self._cgroups.values()):
            self._end_cgroup(group)
        for exited in self._exits.values():
            exited.set_result(Exited(code=None, signal=9))
        self._exits.clear()

    async def _end_process(self) -> None:
        """The process is the keeper, and leads the group of both."""
        if self._is_loading and self._process.returncode is None:  # it has no workers, and reads nothing yet
            kill_process_group(self._process.pid)
        self._control.close()  # the server reaps its workers and ends
        for end in (self._process.terminate, partial(kill_process_group, self._process.pid)):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_TIMEOUT_S)
            if self._process.returncode is None:
                end()
        await self._process.wait()

    async def _read(self) -> None:
        frames = FrameReader[FromForkServer](*get_args(FromForkServer))
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(self._control, 65_536):
                for message in frames.feed(data):
                    self._take(message)
        for waiting in (self._ready, *self._replies.values()):
            if not waiting.done():
                waiting.set_exception(EOFError("the fork server has died"))

    def _take(self, message: object) -> None:
        match message:
            case ForkServerReady():
                self._is_loading = False
                self._ready.set_result(None)
            case WorkerForked(request=request, pid=pid):
                if (group := self._new_cgroups.pop(request, None)) is not None:
                    self._cgroups[pid] = group
                exited = self._exits[pid] = asyncio.get_running_loop().create_future()
                if reply := self._replies.get(request):
                    reply.set_result(Fork(pid, exited))
            case ForkFailed(request=request, reason=reason):
                self._end_cgroup(self._new_cgroups.pop(request, None))
                if reply := self._replies.get(request):
                    reply.set_exception(OSError(reason))
            case WorkerReaped(pid=pid, exit_code=code, signal=signal):
                self._end_cgroup(self._cgroups.pop(pid, None))
                self._exits.pop(pid).set_result(Exited(code=code, signal=signal))
            case _:
                raise AssertionError(f"unexpected message of the fork server: {type(message).__name__}")


# --- The executor's end of the channel to one of its processes -----------------------------------------
# It reads to the end whatever happens to writes. asyncio's streams drop what they have not yet read when a write
# finds that the process has ended; its last messages say why it ended.


class ProcessChannel:
    """sock: a connected stream socket, which belongs to this object from now on."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._is_writable = True

    def send(self, message: ChannelMessage) -> None:
        """Does not wait. No effect if the process is gone. Raises ValueError above MAX_FRAME_BYTES."""
        frame = encode_frame(message)
        if self._is_writable:
            waits = bool(self._unsent)
            self._unsent += frame
            if not waits:
                self._flush()

    def send_with_files(self, message: ChannelMessage, files: Sequence[int]) -> bool:
        """Send copies of these files with it, now. False: the process does not read, or is gone."""
        if self._unsent or not self._is_writable:
            return False
        frame = encode_frame(message)
        try:
            num_sent = socket.send_fds(self._socket, [frame], list(files))
        except OSError:
            return False
        if num_sent < len(frame):
            self._unsent += frame[num_sent:]
            self._flush()
        return True

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of the file."""
        await asyncio.sleep(0)  # a process that sends without end must not keep the event loop
        try:
            return await self._loop.sock_recv(self._socket, 65_536)
        except ConnectionError:  # the process ended with unread messages
            return b""

    def close(self) -> None:
        """Idempotent. Not during `receive`."""
        self._stop_writing()
        self._socket.close()

    def _flush(self) -> None:
        try:
            num_sent = self._socket.send(self._unsent)
        except BlockingIOError:
            num_sent = 0
        except OSError:  # the process is gone
            return self._stop_writing()
        del self._unsent[:num_sent]
        if self._unsent:
            return self._loop.add_writer(self._socket, self._flush)
        self._loop.remove_writer(self._socket)
        return None

    def _stop_writing(self) -> None:
        if self._is_writable:
            self._is_writable = False
            self._unsent.clear()
            self._loop.remove_writer(self._socket)


# --- A process that the fork server has forked, and the executor's end of its channel ------------------

_LAST_MESSAGES_TIMEOUT_S = 1.0  # for a channel that another process holds open after this one has ended

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForkedProcess:
    """The leader of its own process group. Its first message makes it a worker or a runner."""

    pid: int
    exited: "asyncio.Future[Exited]"
    channel: ProcessChannel

    def kill(self) -> None:
        """SIGKILL to the process and its descendants. No effect if they are gone."""
        if not self.exited.done():
            kill_process_group(self.pid)

    async def follow(
        self, frames: FrameReader[Message], on_message: Callable[[Message], None], on_broken: Callable[[str], None]
    ) -> Exited:
        """Pass on its messages until it has ended and the last ones are read.

        on_message: may raise BrokenChannel if the message is not allowed now.
        on_broken: called with the reason if nothing after its last message can be used; the process is then killed.
        """
        listening = asyncio.create_task(self._listen(frames, on_message, on_broken))
        try:
            exited = await asyncio.shield(self.exited)
            await asyncio.wait({listening}, timeout=_LAST_MESSAGES_TIMEOUT_S)
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            self.channel.close()
        return exited

    async def _listen(
        self, frames: FrameReader[Message], on_message: Callable[[Message], None], on_broken: Callable[[str], None]
    ) -> None:
        try:
            while data := await self.channel.receive():
                for message in frames.feed(data):
                    on_message(message)
            await asyncio.wait({self.exited}, timeout=_LAST_MESSAGES_TIMEOUT_S)
            if not self.exited.done():
                raise BrokenChannel("it has closed its channel, but runs on")
        except Exception as error:  # what users' code sends ends its own process, and no task of the executor
            on_broken(str(error) if isinstance(error, BrokenChannel) else f"{type(error).__name__}: {error}")
            self.kill()


async def fork_process(server: ForkServerClient, slots: Sequence[int]) -> ForkedProcess:
    """A new process with its channel, which uses these slots. Raises EOFError, OSError."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as on_failure:
        on_failure.callback(ours.close)
        pid, exited = await server.fork(theirs, slots)
        on_failure.pop_all()
    return ForkedProcess(pid=pid, exited=exited, channel=ProcessChannel(ours))
