"""This engine: real workers under a launcher, as an executor has them, measured by a pre-run."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.engine.models import GLOBAL_BATCH_SIZE, Perceptron
from services.executor.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from shared.messages.worker_channel import Assignment, JoinRendezvous, Profiled, RendezvousListening

_TIMEOUT_S = 300.0


class Engine:
    """One node; one job at a time."""

    def __init__(self, data_dir: Path) -> None:
        self.launcher = Launcher(data_dir=data_dir, node_id="benchmark", on_event=self._note)
        self._data_dir = data_dir
        self._events: asyncio.Queue[tuple[WorkerHandle, WorkerEvent]] = asyncio.Queue()
        self._num_jobs = 0

    async def measure(
        self, job: type[Perceptron], *, million_parameters: int, num_workers: int, num_steps: int
    ) -> float:
        """Seconds of a step, the median of a pre-run."""
        self._num_jobs += 1
        spec = (
            job()
            .set_hyperparameter(global_batch_size=GLOBAL_BATCH_SIZE, million_parameters=million_parameters)
            .term_condition(max_iterations=1_000_000)
            .set_job_class("best_effort")
            .spec()
        )
        assignment = Assignment(
            job_id=f"job-{self._num_jobs}",
            generation=1,
            rank=0,
            world_size=num_workers,
            spec=spec,
            checkpoint_dir=str(self._data_dir / "checkpoints"),
            purpose="profile",
            profile_min_s=_TIMEOUT_S,
            profile_max_iterations=num_steps,
        )
        workers = [await self.launcher.launch(replace(assignment, rank=rank)) for rank in range(num_workers)]
        async with asyncio.timeout(_TIMEOUT_S):
            return await self._hear(workers)

    async def _hear(self, workers: list[WorkerHandle]) -> float:
        """Until all have ended."""
        step_s = None
        num_ended = 0
        while num_ended < len(workers):
            _, event = await self._events.get()
            match event:
                case RendezvousListening(generation=generation, port=port):
                    for worker in workers[1:]:
                        worker.send(JoinRendezvous(generation=generation, address=f"127.0.0.1:{port}"))
                case Profiled(iterations_per_s=rate):
                    step_s = 1 / rate
                case Exited():
                    num_ended += 1
                case _:
                    pass
        if step_s is None:
            raise RuntimeError(f"the pre-run has not ended well; its logs are in {self._data_dir}")
        return step_s

    def _note(self, worker: WorkerHandle, event: WorkerEvent) -> None:
        self._events.put_nowait((worker, event))


@asynccontextmanager
async def running_engine() -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder))
        await engine.launcher.start()
        try:
            yield engine
        finally:
            await engine.launcher.close()
