"""Are the weights those of one worker, bit by bit, whatever happens to a job on one GPU?

Workers of one GPU exchange gradients by way of the host; one run uses NCCL nevertheless (`ranks`). Where a batch
exceeds the memory, the worker finds a micro-batch that fits into a part of the GPU, and computes the bits of one cut
so. On CPUs the job says itself how many samples fit.
"""

import asyncio
import tempfile
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.engine import schedules
from benchmarks.engine.crew import Crew
from benchmarks.engine.models import Gpt2OfFour, ResNet50OfFour, Trained
from benchmarks.engine.parts import Device, device_fields
from benchmarks.engine.sensitive import digest
from benchmarks.engine.stage import Stage, stage
from benchmarks.gpu.jobs import GLOBAL_BATCH_SIZE, Compiled, Gpt2OverNccl, LimitedGpt2, Sensitive
from benchmarks.report import Measured, Row
from elasticflow import ElasticJob
from elasticflow.services.executor.processes.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Interrupted
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan, PrepareSwitch
from elasticflow.shared.state.fold.workers import halved

# --- any number of workers, and a restart --------------------------------------------------------------


NEVER_S = 1e6
_AT_ONCE = 3  # runs on one GPU
_NUM_ITERATIONS = 6
_BATCH_SIZE = {"gpt2": 8, "resnet50": 64}
_QUICK_BATCH = 8  # two samples for each BatchNorm
_QUICK_ITERATIONS = 2
_MODELS: dict[str, tuple[type[Trained], int]] = {"gpt2": (Gpt2OfFour, 124), "resnet50": (ResNet50OfFour, 25)}
# by name of a run: the workers of each of its starts, the second one from the checkpoint of the first
_RUNS = {"alone": (1,), "alone again": (1,), "2 workers": (2,), "4 workers": (4,), "restarted": (2, 1)}
_OVER_NCCL = "2 workers over NCCL"


def measure_hashes(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_compare_runs(device, quick, note))


async def _compare_runs(device: Device, quick: bool, note: Callable[..., None]) -> None:
    """Notes the digests of model and optimizer at the end, or errors, by model and run."""
    turn = asyncio.Semaphore(_AT_ONCE)
    async with stage(device) as there:
        for model, (job, million_parameters) in _MODELS.items():
            runs = {name: (job, starts) for name, starts in _RUNS.items()}
            if model == "gpt2":
                runs[_OVER_NCCL] = Gpt2OverNccl, (2,)
            elif quick:
                runs = {name: runs[name] for name in ("alone", "2 workers")}
            digests: dict[str, str] = {}
            num_iterations = _QUICK_ITERATIONS if quick else _NUM_ITERATIONS
            batch_size = _QUICK_BATCH if quick else _BATCH_SIZE[model]
            size = 1 if quick else million_parameters

            async def run(name: str, job: type[Trained], starts: tuple[int, ...], *given: Any) -> None:
                model, digests, *settings = given
                async with turn:
                    try:
                        digests[name] = await _digest_after(there, f"{model}-{name}", job, starts, *settings)
                    except Exception as error:  # the other runs tell more
                        digests[name] = f"{type(error).__name__}: {error}"
                note(**{model: digests})

            async with asyncio.TaskGroup() as tasks:
                for name, (job, starts) in runs.items():
                    tasks.create_task(run(name, job, starts, model, digests, num_iterations, batch_size, size))


async def _digest_after(
    there: Stage, name: str, job: type[Trained], starts: tuple[int, ...], num_iterations: int, *cut: int
) -> str:
    """Each start continues for as many iterations. cut: the global batch, and the size of the model."""
    job_id, generation, crew = name.replace(" ", "-").lower(), 0, None
    batch_size, million_parameters = cut
    for number, num_workers in enumerate(starts, start=1):
        until = num_iterations * number // len(starts)
        spec = spec_of(job(), until, batch_size, million_parameters=million_parameters)
        crew = there.crew(job_id, spec, checkpoint_every_s=NEVER_S)
        crew.generation = generation  # it takes the checkpoint of an earlier one
        await train_to_the_end(crew, num_workers)
        generation = crew.generation
    assert crew is not None
    return await asyncio.to_thread(digest_of, crew)


def spec_of(job: ElasticJob, num_iterations: int, batch_size: int, **hyperparameters: Any) -> JobSpec:
    job.set_hyperparameter(global_batch_size=batch_size, **hyperparameters)
    return job.term_condition(max_iterations=num_iterations).set_job_class("best_effort").spec()


async def train_to_the_end(crew: Crew, num_workers: int) -> None:
    """Survivors of a lost worker continue."""
    await crew.start(num_workers)
    while crew.processes:
        await crew.until(lambda: not crew.processes or _has_lost_one(crew), "it has finished or lost a worker")
        if crew.processes:
            await crew.shrink_to_survivors()


def _has_lost_one(crew: Crew) -> bool:
    return crew.finished is None and any(worker.exited is not None for worker in crew.members)


def digest_of(crew: Crew) -> str:
    """The digest of the job's state at its end."""
    state = crew.newest_state()
    return digest([state["iteration"], state["model"], state["optimizer"]])


def rows_of_hashes(measured: Measured) -> Iterable[Row]:
    for model, digests in measured.items():
        differ = [name for name, each in digests.items() if each != digests.get("alone")]
        told = "equal" if not differ else f"DIFFERENT: {', '.join(differ)}"
        yield Row(f"weights of {model} in bfloat16", told, "equal", ", ".join(digests))


# --- a worker that dies in any transfer of a step ------------------------------------------------------


_KILLED_ITERATIONS = 6


def measure_kills(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_kill_in_each_transfer(device, 2 if quick else 4, note))


async def _kill_in_each_transfer(device: Device, num_workers: int, note: Callable[..., None]) -> None:
    """Notes the number of transfers, and after which of them the weights differ."""
    differences: list[int] = []
    async with stage(device) as there:
        undisturbed = await _trained(there, "undisturbed", 1)
        for kill_at in count():
            with tempfile.TemporaryDirectory() as marks:
                trained = await _trained(there, f"kill-{kill_at}", num_workers, kill_at=kill_at, marks=marks)
                if not _has_mark(Path(marks)):
                    break
            if trained != undisturbed:
                differences.append(kill_at)
            note(num_workers=num_workers, num_transfers=kill_at + 1, differences=differences)


def _has_mark(folder: Path) -> bool:
    return any(folder.iterdir())


async def _trained(there: Stage, job_id: str, num_workers: int, **hyperparameters: Any) -> str:
    spec = spec_of(Sensitive(), _KILLED_ITERATIONS, GLOBAL_BATCH_SIZE, **hyperparameters)
    crew = there.crew(job_id, spec, checkpoint_every_s=NEVER_S)
    await train_to_the_end(crew, num_workers)
    return digest_of(crew)


def rows_of_kills(measured: Measured) -> Iterable[Row]:
    what = f"SIGKILL in each of {measured['num_transfers']} transfers of a step, other weights afterwards"
    yield Row(what, str(len(measured["differences"])), "0")


# --- a worker that joins a compiled model --------------------------------------------------------------


def measure_compiled_join(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_join_compiled(device, 120 if quick else 800, note))


async def _join_compiled(device: Device, num_iterations: int, note: Callable[..., None]) -> None:
    async with stage(device) as there:
        spec = spec_of(Compiled(), num_iterations, GLOBAL_BATCH_SIZE)
        alone = there.crew("alone", spec, checkpoint_every_s=NEVER_S)
        await train_to_the_end(alone, 1)
        crew = there.crew("joined", spec, checkpoint_every_s=NEVER_S)
        await crew.start(1)
        await crew.until(lambda: crew.holders[0].iteration > 0 or crew.finished is not None, "it has trained")
        joined = bool(crew.holders) and await crew.switch([crew.holders[0], None])
        await crew.until(lambda: not crew.processes, "it has finished")
        timeline = crew.timelines[-1] if joined else None
        note(
            joined=joined,
            equal=digest_of(crew) == digest_of(alone),
            prepare_s=timeline.prepare_s if timeline else None,
            stop_s=timeline.stop_s if timeline else None,
            first_step_s=timeline.first_step_s if timeline else None,
        )


def rows_of_compiled_join(measured: Measured) -> Iterable[Row]:
    parts = ("prepare_s", "stop_s", "first_step_s") if measured["joined"] else ()
    seconds = " + ".join(f"{measured[name]:.2f}" for name in parts) or "-"
    yield Row("a worker joins a compiled model: prepared + stopped + first step, s", seconds)
    yield Row("weights afterwards", "equal" if measured["equal"] else "DIFFERENT", "equal")


# --- a batch that exceeds the memory -------------------------------------------------------------------


_LIMITED_ITERATIONS = 3
_LIMITED_BATCH, _QUICK_LIMITED_BATCH = 64, 8
_LIMIT_BYTES = 16 << 30  # of the GPU; the batch needs more
_QUICK_LIMIT = 2  # samples
_WITHIN_S = 60.0  # without any event


def measure_memory(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    limit = _QUICK_LIMIT if device == Device.CPU else _LIMIT_BYTES
    note(**asyncio.run(_limited(device, quick, limit)))


async def _limited(device: Device, quick: bool, limit: int) -> Measured:
    """micro_batch_sizes: those that were tried, 0 for the whole batch; the last one fits."""
    with tempfile.TemporaryDirectory() as folder:
        job = _LimitedJob(device, quick, Path(folder))
        await job.launcher.start()
        try:
            found = await job.train("limited", 0, memory_bytes=limit)
            tried = tuple(job.tried)
            expected = await job.train("alone", tried[-1], memory_bytes=0)
        finally:
            await job.launcher.close()
    return {"limit": limit, "micro_batch_sizes": tried, "is_equal": found == expected}


class _LimitedJob:
    """One worker at a time. Its ledger is here: a batch that exceeds the memory is halved, as in a pool."""

    def __init__(self, device: Device, quick: bool, folder: Path) -> None:
        self.tried: list[int] = []
        self.launcher = Launcher(data_dir=folder, node_id="memory", on_event=self._note, device=device.value)
        self._device, self._quick, self._folder = device, quick, folder
        self._events = asyncio.Queue[WorkerEvent]()

    async def train(self, job_id: str, micro_batch_size: int, *, memory_bytes: int) -> str:
        """The digest of what it has trained."""
        batch_size = _QUICK_LIMITED_BATCH if self._quick else _LIMITED_BATCH
        settings = {"million_parameters": 1 if self._quick else 124, "memory_bytes": memory_bytes}
        self.tried = [micro_batch_size]
        checkpoints = self._folder / "checkpoints" / job_id
        worker = await self.launcher.launch(
            Assignment(
                job_id=job_id,
                plan=GenerationPlan(generation=1, world_size=1, micro_batch_size=micro_batch_size),
                rank=0,
                spec=spec_of(LimitedGpt2(), _LIMITED_ITERATIONS, batch_size, **settings),
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


def rows_of_memory(measured: Measured) -> Iterable[Row]:
    tried = ", ".join(str(size or "all") for size in measured["micro_batch_sizes"])
    told = "equal" if measured["is_equal"] else "DIFFERENT"
    yield Row("weights after a batch exceeded the memory", told, "equal", f"samples at once: {tried}")


# --- random joins, leaves and kills --------------------------------------------------------------------


_NUM_SCHEDULES = 10
_VIRTUAL_NODES = 8


def measure_schedules(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    seeds = range(1 if quick else _NUM_SCHEDULES)
    note(**asyncio.run(schedules.prove(_VIRTUAL_NODES, seeds, schedules.Conditions(device=device))))


def rows_of_schedules(measured: Measured) -> Iterable[Row]:
    wrong = len(measured["differences"]) + len(measured["unfinished"])
    what = f"{measured['schedules']} random schedules, {measured['killed']} kills: states that differ, or no end"
    yield Row(what, str(wrong), "0", f"{measured['states_compared']} states compared")
