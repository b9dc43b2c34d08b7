"""The fork server as its launcher sees it: a process that makes workers and tells how each ended."""

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from services.executor.processes import kill_group, wait_until_gone
from shared.errors import Retry
from shared.messages.forking import ForkRefused, ForkServerReady, ForkWorker, WorkerForked, WorkerReaped
from shared.messages.worker_frames import FrameReader, encode_frame

_LOAD_TIMEOUT_S = 120.0  # importing torch from a cold disk
_END_TIMEOUT_S = 5.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The worker and its process group are gone; nothing follows. Either an exit code or a signal."""

    code: int | None
    signal: int | None


@dataclass(eq=False)
class LaunchFailed(Retry):
    reason: str
    log_file: str

    SENTENCE: ClassVar[str] = "no worker process could be started: {reason}; see {log_file}"


class Fork(NamedTuple):
    """A new worker: its process, and its end when it comes."""

    pid: int
    exited: asyncio.Future[Exited]


class ForkServer:
    """The process that forks workers, seen from here."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._ready = asyncio.get_running_loop().create_future()
        self._requests = itertools.count()
        self._replies: dict[int, asyncio.Future[Fork]] = {}
        self._exits: dict[int, asyncio.Future[Exited]] = {}
        self._reading = asyncio.create_task(self._read(), name="fork server control")

    @classmethod
    async def start(cls, marks: dict[str, str], log_file: Path, preload: Sequence[str]) -> "ForkServer":
        """Return once the libraries are loaded. Raises LaunchFailed."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        await asyncio.to_thread(log_file.parent.mkdir, parents=True, exist_ok=True)
        with theirs, log_file.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.executor.worker", str(theirs.fileno()), *preload),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment() | marks,
                start_new_session=True,  # a Ctrl-C in the terminal is the executor's to handle
            )
        server = cls(process, ours)
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await server._ready
        except (TimeoutError, EOFError, asyncio.CancelledError) as error:
            await server.end()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise LaunchFailed("the fork server did not come up", str(log_file)) from error
        return server

    async def fork(self, channel: socket.socket) -> "Fork":
        """A new worker that holds this end of a channel. Raises EOFError, OSError."""
        if self._reading.done():
            raise EOFError("the fork server has died")
        request = next(self._requests)
        reply = self._replies[request] = asyncio.get_running_loop().create_future()
        try:
            frame = encode_frame(ForkWorker(request=request))
            socket.send_fds(self._control, [frame], [channel.fileno()])
            return await reply
        finally:  # an answer that comes too late is nobody's: its worker ends with its channel
            del self._replies[request]

    async def ended(self) -> None:
        await asyncio.wait({self._reading})

    async def end(self) -> None:
        """Kill server and workers, wait until they are gone, and tell whoever follows them."""
        self._reading.cancel()
        await asyncio.wait({self._reading})
        pids = list(self._exits)
        for pid in pids:
            kill_group(pid)
        self._control.close()  # the server buries its workers and ends
        try:
            await asyncio.wait_for(self._process.wait(), _END_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.to_thread(wait_until_gone, pids)
        for exited in self._exits.values():
            exited.set_result(Exited(code=None, signal=9))
        self._exits.clear()

    async def _read(self) -> None:
        frames = FrameReader()
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
                self._ready.set_result(None)
            case WorkerForked(request=request, pid=pid):
                exited = self._exits[pid] = asyncio.get_running_loop().create_future()
                if reply := self._replies.get(request):
                    reply.set_result(Fork(pid, exited))
            case ForkRefused(request=request, reason=reason):
                if reply := self._replies.get(request):
                    reply.set_exception(OSError(reason))
            case WorkerReaped(pid=pid, exit_code=code, signal=signal):
                self._exits.pop(pid).set_result(Exited(code=code, signal=signal))
            case _:
                raise AssertionError(f"a fork server never says {type(message).__name__}")


def _environment() -> dict[str, str]:
    """What a worker inherits: no address or secret of the bus, for users' code runs in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NATS_", "EF_"))}
    path = os.pathsep.join(filter(None, (str(_ROOT), kept.get("PYTHONPATH"))))
    needed = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # a process with threads must not fork
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # nor one that touched CUDA: torch.cuda.is_available() would
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it, sums of products differ from call to call
    }
    return kept | needed | {"PYTHONPATH": path}
