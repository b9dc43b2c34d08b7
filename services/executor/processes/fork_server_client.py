"""The launcher's client of the fork server, a process that forks workers and reports how each ended."""

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple, get_args

from elasticflow.services.executor.processes.reaper import wait_until_gone
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.worker_protocol.forking import (
    ForkFailed,
    ForkServerReady,
    ForkWorker,
    FromForkServer,
    Isolation,
    WorkerForked,
    WorkerReaped,
)
from elasticflow.shared.messages.worker_protocol.frames import FrameReader, encode_frame
from elasticflow.shared.runtime.process.process_termination import kill_process_group
from elasticflow.shared.runtime.process.run_module import module_command

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


class ForkServer:
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
        cls, marks: dict[str, str], log_file: Path, preload: Sequence[str], isolation: WorkerIsolation
    ) -> "ForkServer":
        """Return once the fork server has loaded its libraries. Raises LaunchFailed."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.to_thread(log_file.parent.mkdir, parents=True, exist_ok=True)
        with theirs, log_file.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *module_command("elasticflow.services.executor.worker", str(theirs.fileno()), *preload),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=isolation.environment(os.environ) | _NEEDED | marks,
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

    async def fork(self, channel: socket.socket) -> "Fork":
        """Fork a worker that inherits this end of a channel. Raises EOFError, OSError."""
        if self._reading.done():
            raise EOFError("the fork server has died")
        request = next(self._requests)
        reply = self._replies[request] = asyncio.get_running_loop().create_future()
        try:
            frame = encode_frame(ForkWorker(request=request, isolation=self._isolation_of(request)))
            socket.send_fds(self._control, [frame], [channel.fileno()])
            return await reply
        finally:  # after a late reply, the worker ends with its channel
            del self._replies[request]

    def _isolation_of(self, request: int) -> Isolation | None:
        """With a new control group, where this node has them. Raises OSError."""
        isolation, cgroups = self._isolation.isolation, self._isolation.cgroups
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
