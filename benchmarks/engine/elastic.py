"""This engine: real workers under a launcher, as an executor has them."""

import asyncio
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks.engine.models import Trained
from benchmarks.engine.parts import Device
from elasticflow.services.executor.processes.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, RendezvousListening
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, JoinRendezvous

_TIMEOUT_S = 300.0
T = TypeVar("T")


class Engine:
    """One node; one job at a time. received_at_s: time of the last event of each kind."""

    def __init__(self, data_dir: Path, device: Device = Device.CPU) -> None:
        self.device = device
        self.launcher = Launcher(data_dir=data_dir, node_id="benchmark", on_event=self._note)
        self.received_at_s: dict[type, float] = {}
        self._data_dir = data_dir
        self._unheard: defaultdict[WorkerHandle, list[WorkerEvent]] = defaultdict(list)
        self._changed = asyncio.Event()
        self._num_jobs = 0

    def assignment(self, job: type[Trained], million_parameters: int) -> Assignment:
        """The assignment of a new job, to rank 0 of one worker."""
        self._num_jobs += 1
        spec = (
            job()
            .set_hyperparameter(global_batch_size=job.BATCH_SIZE, million_parameters=million_parameters)
            .term_condition(max_iterations=1_000_000)
            .set_job_class("best_effort")
            .spec()
        )
        job_id = f"job-{self._num_jobs}"
        return Assignment(
            job_id=job_id,
            plan=GenerationPlan(generation=1, world_size=1),
            rank=0,
            spec=spec,
            checkpoint_dir=str(self._data_dir / "checkpoints" / job_id),
            checkpoint_every_s=_TIMEOUT_S,
        )

    async def receive(self, kind: type[T], worker: WorkerHandle, rendezvous: Sequence[WorkerHandle] = ()) -> T:
        """The next event of this kind from this worker; its earlier events are dropped. rendezvous: workers that
        receive the address of rank 0 when it listens. Raises RuntimeError if this worker ends first."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                unheard = self._unheard[worker]
                while unheard:
                    event = unheard.pop(0)
                    if isinstance(event, RendezvousListening):
                        address = f"127.0.0.1:{event.port}"
                        for other in rendezvous[1:]:
                            other.send(JoinRendezvous(generation=event.generation, address=address))
                    if isinstance(event, kind):
                        return event
                    if isinstance(event, Failed | Exited):
                        raise RuntimeError(f"a worker ended before its {kind.__name__}: {event}")
                self._changed.clear()
                await self._changed.wait()

    def _note(self, worker: WorkerHandle, event: WorkerEvent) -> None:
        self.received_at_s[type(event)] = time.monotonic()
        self._unheard[worker].append(event)
        self._changed.set()


@asynccontextmanager
async def running_engine(device: Device = Device.CPU) -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder), device)
        await engine.launcher.start()
        try:
            yield engine
        finally:
            await engine.launcher.close()
