"""The warm pool: a worker forked ahead for each GPU up to a limit, which takes the next assignment of its GPU.

A CUDA context cannot be forked, so each warm worker makes its own before a job needs it. No process serves two jobs
(decision record 0020). After a pause another worker replaces one that is taken or has died: the taken one is starting
now, and a GPU that is unusable now may be usable later.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import structlog

from elasticflow.services.executor.processes.fork_server_client import LaunchFailed
from elasticflow.services.executor.processes.forked_process import ForkedProcess
from elasticflow.shared.messages.worker_protocol.to_worker import WarmUp

log = structlog.get_logger()

_PAUSE_S = 1.0
_FIRST_RETRY_S, _LAST_RETRY_S = 2.0, 60.0


class WarmPool:
    """fork: a new process. Raises LaunchFailed."""

    def __init__(
        self, fork: Callable[[], Awaitable[ForkedProcess]], *, device: Literal["cpu", "cuda"], num_gpus: int
    ) -> None:
        self._fork = fork
        self._device: Literal["cpu", "cuda"] = device
        self._num_gpus = num_gpus
        self._ready: dict[int, ForkedProcess] = {}  # by GPU index
        self._taken: dict[int, asyncio.Future[None]] = {}

    @property
    def ready(self) -> dict[int, int]:
        """Process ids by GPU index."""
        return {gpu_index: worker.pid for gpu_index, worker in self._ready.items()}

    async def run(self) -> None:
        """Keep a warm worker for each GPU, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for gpu_index in range(self._num_gpus):
                    tasks.create_task(self._keep(gpu_index), name=f"warm worker {gpu_index}")
        finally:
            for worker in self._ready.values():
                worker.channel.close()  # the worker ends with its channel
            self._ready.clear()

    def take(self, gpu_index: int) -> ForkedProcess | None:
        """Remove and return the warm worker of this GPU; None if there is none."""
        worker = self._ready.pop(gpu_index, None)
        if worker is None or worker.exited.done():
            return None
        self._taken[gpu_index].set_result(None)
        return worker

    async def _keep(self, gpu_index: int) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                worker = await self._fork()
            except LaunchFailed as error:
                log.warning("warm_worker_not_started", gpu_index=gpu_index, reason=str(error))
            else:
                if await self._is_taken(worker, gpu_index):
                    retry_s = _FIRST_RETRY_S
                    await asyncio.sleep(_PAUSE_S)
                    continue
                log.warning("warm_worker_died", gpu_index=gpu_index, exited=str(worker.exited.result()))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _is_taken(self, worker: ForkedProcess, gpu_index: int) -> bool:
        """Wait until it is taken; False if it dies before."""
        taken = self._taken[gpu_index] = asyncio.get_running_loop().create_future()
        self._ready[gpu_index] = worker
        worker.channel.send(WarmUp(device=self._device, gpu_index=gpu_index))
        await asyncio.wait({taken, worker.exited}, return_when=asyncio.FIRST_COMPLETED)
        if taken.done():
            return True
        self._ready.pop(gpu_index, None)
        worker.channel.close()
        return False
