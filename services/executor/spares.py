"""Warm workers: processes forked ahead, one for each GPU up to a bound, which take the next assignment for theirs.

A CUDA context cannot be forked: so each spare makes its own, while nobody waits for it. No process ever works for a
second job (decision record 0020). One that is taken or has died is followed by another, after a pause: whoever took it
is starting now, and a GPU that cannot be used now may be usable later.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import structlog

from services.executor.fork_server import Exited, LaunchFailed
from shared.messages.to_worker import WarmUp
from shared.messages.worker_frames import encode_frame

log = structlog.get_logger()

_PAUSE_S = 1.0
_FIRST_RETRY_S, _LAST_RETRY_S = 2.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerProcess:
    """One that was forked and is connected; nobody has told it yet what to do."""

    pid: int
    exited: "asyncio.Future[Exited]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Spares:
    """fork: a new process. Raises LaunchFailed."""

    def __init__(
        self, fork: Callable[[], Awaitable[WorkerProcess]], *, device: Literal["cpu", "cuda"], num_gpus: int
    ) -> None:
        self._fork = fork
        self._device: Literal["cpu", "cuda"] = device
        self._num_gpus = num_gpus
        self._ready: dict[int, WorkerProcess] = {}  # by GPU
        self._taken: dict[int, asyncio.Future[None]] = {}

    @property
    def ready(self) -> dict[int, int]:
        """Process ids, by GPU."""
        return {gpu_index: spare.pid for gpu_index, spare in self._ready.items()}

    async def run(self) -> None:
        """Keep one for each GPU, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for gpu_index in range(self._num_gpus):
                    tasks.create_task(self._keep(gpu_index), name=f"spare {gpu_index}")
        finally:
            for spare in self._ready.values():
                spare.writer.close()  # it ends with its channel
            self._ready.clear()

    def take(self, gpu_index: int) -> WorkerProcess | None:
        """The one of this GPU, if there is one; its caller has it from now on."""
        spare = self._ready.pop(gpu_index, None)
        if spare is None or spare.exited.done():
            return None
        self._taken[gpu_index].set_result(None)
        return spare

    async def _keep(self, gpu_index: int) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                spare = await self._fork()
            except LaunchFailed as error:
                log.warning("spare_not_started", gpu_index=gpu_index, reason=str(error))
            else:
                if await self._is_taken(spare, gpu_index):
                    retry_s = _FIRST_RETRY_S
                    await asyncio.sleep(_PAUSE_S)
                    continue
                log.warning("spare_died", gpu_index=gpu_index, exited=str(spare.exited.result()))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _is_taken(self, spare: WorkerProcess, gpu_index: int) -> bool:
        """Once it is; False once it has died before."""
        taken = self._taken[gpu_index] = asyncio.get_running_loop().create_future()
        self._ready[gpu_index] = spare
        spare.writer.write(encode_frame(WarmUp(device=self._device, gpu_index=gpu_index)))
        await asyncio.wait({taken, spare.exited}, return_when=asyncio.FIRST_COMPLETED)
        if taken.done():
            return True
        self._ready.pop(gpu_index, None)
        spare.writer.close()
        return False
