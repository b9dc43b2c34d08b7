"""Out of memory: the worker finds a micro-batch that fits into a part of the GPU, and computes the bits of one cut so.

On CPUs the job says itself how many samples fit.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.engine.parts import Device, device_fields
from benchmarks.engine.sensitive import digest
from benchmarks.gpu.hashes import NEVER_S, spec_of
from benchmarks.gpu.jobs import LimitedGpt2
from benchmarks.report import Measured, Row
from elasticflow.services.executor.processes.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Interrupted
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, PrepareSwitch
from elasticflow.shared.state.fold.workers import halved

_NUM_ITERATIONS = 3
_BATCH_SIZE, _QUICK_BATCH_SIZE = 64, 8
_LIMIT_BYTES = 16 << 30  # of the GPU; the batch needs more
_QUICK_LIMIT = 2  # samples
_WITHIN_S = 60.0  # without any event


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    limit = _QUICK_LIMIT if device == Device.CPU else _LIMIT_BYTES
    note(**asyncio.run(_measure(device, quick, limit)))


async def _measure(device: Device, quick: bool, limit: int) -> Measured:
    """micro_batch_sizes: those that were tried, 0 for the whole batch; the last one fits."""
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(device, quick, Path(folder))
        await job.launcher.start()
        try:
            found = await job.train("limited", 0, memory_bytes=limit)
            tried = tuple(job.tried)
            expected = await job.train("alone", tried[-1], memory_bytes=0)
        finally:
            await job.launcher.close()
    return {"limit": limit, "micro_batch_sizes": tried, "is_equal": found == expected}


class _Job:
    """One worker at a time. Its ledger is here: a batch that exceeds the memory is halved, as in a pool."""

    def __init__(self, device: Device, quick: bool, folder: Path) -> None:
        self.tried: list[int] = []
        self.launcher = Launcher(data_dir=folder, node_id="memory", on_event=self._note, device=device.value)
        self._device, self._quick, self._folder = device, quick, folder
        self._events = asyncio.Queue[WorkerEvent]()

    async def train(self, job_id: str, micro_batch_size: int, *, memory_bytes: int) -> str:
        """The digest of what it has trained."""
        batch_size = _QUICK_BATCH_SIZE if self._quick else _BATCH_SIZE
        settings = {"million_parameters": 1 if self._quick else 124, "memory_bytes": memory_bytes}
        self.tried = [micro_batch_size]
        checkpoints = self._folder / "checkpoints" / job_id
        worker = await self.launcher.launch(
            Assignment(
                job_id=job_id,
                plan=GenerationPlan(generation=1, world_size=1, micro_batch_size=micro_batch_size),
                rank=0,
                spec=spec_of(LimitedGpt2(), _NUM_ITERATIONS, batch_size, **settings),
                checkpoint_dir=str(checkpoints),
                checkpoint_every_s=NEVER_S,
                **device_fields(self._device, 0),
            )
        )
        await self._until_it_ends(worker)
        state = CheckpointStore(checkpoints, generation=1 << 30).newest()
        assert state is not None, "an ended job leaves a checkpoint"
        return digest([state["iteration"], state["model"], state["optimizer"]])

    def _note(self, _: WorkerHandle, event: WorkerEvent) -> None:
        self._events.put_nowait(event)

    async def _until_it_ends(self, worker: WorkerHandle) -> None:
        while True:
            async with asyncio.timeout(_WITHIN_S):
                event = await self._events.get()
            match event:
                case Interrupted(micro_batch_size=size):
                    self.tried.append(halved(size))
                    worker.send(
                        PrepareSwitch(
                            plan=GenerationPlan(
                                generation=len(self.tried),
                                world_size=1,
                                rendezvous_size=1,
                                micro_batch_size=self.tried[-1],
                            ),
                            rendezvous_rank=0,
                        )
                    )
                case Failed(error=error):
                    raise AssertionError(error)
                case Exited():
                    return
                case _:
                    pass


def rows(measured: Measured) -> Iterable[Row]:
    tried = ", ".join(str(size or "all") for size in measured["micro_batch_sizes"])
    told = "equal" if measured["is_equal"] else "DIFFERENT"
    yield Row("weights after a batch exceeded the memory", told, "equal", f"samples at once: {tried}")
