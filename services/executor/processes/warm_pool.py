"""The warm pool: a worker forked ahead for each free GPU up to a limit, which takes the next assignment of its GPU.

A CUDA context cannot be forked, so each warm worker makes its own before a job needs it. No process serves two jobs
(decision record 0020). While a job has the GPU, no warm worker is there: its context would take half a gigabyte of
memory (decision record 0083). A dead one is replaced after a pause: a GPU that is unusable now may be usable later.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import structlog

from elasticflow.services.executor.processes.fork_server_client import LaunchFailed
from elasticflow.services.executor.processes.forked_process import ForkedProcess
from elasticflow.shared.messages.worker_protocol.to_worker import WarmUp

log = structlog.get_logger()

_PAUSE_S = 1.0  # after the last worker on a GPU: the next one may start there at once
_FIRST_RETRY_S, _LAST_RETRY_S = 2.0, 60.0


class _Gpu:
    """num_workers: of jobs. warm: waits for a job. used: once a worker of a job begins."""

    def __init__(self) -> None:
        self.num_workers = 0
        self.warm: ForkedProcess | None = None
        self.used, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    def end_warm(self) -> None:
        """It ends with its channel."""
        if self.warm is not None:
            self.warm.channel.close()
            self.warm = None


class WarmPool:
    """fork: a new process. Raises LaunchFailed."""

    def __init__(
        self, fork: Callable[[], Awaitable[ForkedProcess]], *, device: Literal["cpu", "cuda"], num_gpus: int
    ) -> None:
        self._fork = fork
        self._device: Literal["cpu", "cuda"] = device
        self._gpus = [_Gpu() for _ in range(num_gpus)]

    @property
    def ready(self) -> dict[int, int]:
        """Process ids by GPU index."""
        return {index: gpu.warm.pid for index, gpu in enumerate(self._gpus) if gpu.warm is not None}

    async def run(self) -> None:
        """Keep a warm worker for each free GPU, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for gpu_index, gpu in enumerate(self._gpus):
                    tasks.create_task(self._keep(gpu_index, gpu), name=f"warm worker {gpu_index}")
        finally:
            for gpu in self._gpus:
                gpu.end_warm()

    def enter(self, gpu_index: int, *, may_be_warm: bool) -> ForkedProcess | None:
        """A worker of a job begins on this GPU, until `leave`: the warm one if there is one and it may be that. Else
        the warm one ends."""
        if gpu_index >= len(self._gpus):
            return None
        gpu = self._gpus[gpu_index]
        gpu.num_workers += 1
        gpu.free.clear()
        gpu.used.set()
        worker = gpu.warm
        if worker is None or worker.exited.done() or not may_be_warm:
            gpu.end_warm()
            return None
        gpu.warm = None
        return worker

    def leave(self, gpu_index: int) -> None:
        """Its process has ended."""
        if gpu_index >= len(self._gpus):
            return
        gpu = self._gpus[gpu_index]
        gpu.num_workers -= 1
        if gpu.num_workers == 0:
            gpu.used.clear()
            gpu.free.set()

    async def _keep(self, gpu_index: int, gpu: _Gpu) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            while not gpu.free.is_set():
                await gpu.free.wait()
                await asyncio.sleep(_PAUSE_S)
            try:
                worker = await self._fork()
            except LaunchFailed as error:
                log.warning("warm_worker_not_started", gpu_index=gpu_index, reason=str(error))
            else:
                if await self._is_used_before_the_end_of(worker, gpu_index, gpu):
                    retry_s = _FIRST_RETRY_S
                    continue
                log.warning("warm_worker_died", gpu_index=gpu_index, exited=str(worker.exited.result()))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)

    async def _is_used_before_the_end_of(self, worker: ForkedProcess, gpu_index: int, gpu: _Gpu) -> bool:
        """Let it wait for a job."""
        gpu.warm = worker
        if gpu.used.is_set():  # while it was forked
            gpu.end_warm()
            return True
        worker.channel.send(WarmUp(device=self._device, gpu_index=gpu_index))
        used = asyncio.create_task(gpu.used.wait())
        await asyncio.wait({used, worker.exited}, return_when=asyncio.FIRST_COMPLETED)
        if used.done():
            return True
        used.cancel()
        gpu.end_warm()
        return False
