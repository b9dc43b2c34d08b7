"""Are the weights of GPT-2 and ResNet-50 in bfloat16 the same twice, on any number of workers, and after a restart?

Workers of one GPU exchange gradients by way of the host; one run uses NCCL nevertheless (`ranks`).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.engine.crew import Crew
from benchmarks.engine.models import Gpt2OfFour, ResNet50OfFour, Trained
from benchmarks.engine.parts import Device
from benchmarks.engine.sensitive import digest
from benchmarks.engine.stage import Stage, stage
from benchmarks.gpu.jobs import Gpt2OverNccl
from benchmarks.report import Measured, Row
from elasticflow import ElasticJob
from elasticflow.shared.messages.job_spec import JobSpec

NEVER_S = 1e6
_AT_ONCE = 3  # runs on one GPU
_NUM_ITERATIONS = 6
_BATCH_SIZE = {"gpt2": 8, "resnet50": 64}
_QUICK_BATCH_SIZE = 8  # two samples for each BatchNorm
_QUICK_ITERATIONS = 2
_MODELS: dict[str, tuple[type[Trained], int]] = {"gpt2": (Gpt2OfFour, 124), "resnet50": (ResNet50OfFour, 25)}
# by name of a run: the workers of each of its starts, the second one from the checkpoint of the first
_RUNS = {"alone": (1,), "alone again": (1,), "2 workers": (2,), "4 workers": (4,), "restarted": (2, 1)}
_OVER_NCCL = "2 workers over NCCL"


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    asyncio.run(_measure(device, quick, note))


async def _measure(device: Device, quick: bool, note: Callable[..., None]) -> None:
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
            batch_size = _QUICK_BATCH_SIZE if quick else _BATCH_SIZE[model]
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


def rows(measured: Measured) -> Iterable[Row]:
    for model, digests in measured.items():
        differ = [name for name, each in digests.items() if each != digests.get("alone")]
        told = "equal" if not differ else f"DIFFERENT: {', '.join(differ)}"
        yield Row(f"weights of {model} in bfloat16", told, "equal", ", ".join(digests))
