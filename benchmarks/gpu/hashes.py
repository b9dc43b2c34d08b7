"""Are the weights of any number of workers that share a GPU those of one worker, also after a loss in each transfer?"""

import asyncio
import tempfile
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.engine.crew import Crew
from benchmarks.engine.device import Device
from benchmarks.engine.sensitive import digest
from benchmarks.engine.stage import Stage, stage
from benchmarks.gpu.jobs import GLOBAL_BATCH_SIZE, Compiled, Sensitive
from benchmarks.report import Measured, Row
from elasticflow.shared.messages.job_spec import JobSpec

_NUM_WORKERS = (1, 2, 4, 8)
_PRECISIONS = ("fp32", "bf16")
_NEVER = 1e6


def measure_hashes(device: Device, *, num_iterations: int = 20) -> Measured:
    """digests: of model and optimizer at the end, by precision and number of workers."""
    return asyncio.run(_hashes(device, num_iterations))


async def _hashes(device: Device, num_iterations: int) -> Measured:
    async with stage(device) as there:
        digests = {
            precision: {
                str(num_workers): await _trained(
                    there, f"{precision}-{num_workers}", _spec(Sensitive(), num_iterations, precision), num_workers
                )
                for num_workers in _NUM_WORKERS
            }
            for precision in _PRECISIONS
        }
    equal = {precision: len(set(by_number.values())) == 1 for precision, by_number in digests.items()}
    return {"num_iterations": num_iterations, "digests": digests, "equal": equal}


def measure_kills(device: Device, *, num_workers: int = 4, num_iterations: int = 6) -> Measured:
    """A run for each transfer of one step. differences: numbers of transfers after which the weights differ."""
    return asyncio.run(_kills(device, num_workers, num_iterations))


async def _kills(device: Device, num_workers: int, num_iterations: int) -> Measured:
    differences: list[int] = []
    kill_at = 0
    async with stage(device) as there:
        undisturbed = await _trained(there, "undisturbed", _spec(Sensitive(), num_iterations, "fp32"), 1)
        for kill_at in count():
            with tempfile.TemporaryDirectory() as marks:
                spec = _spec(Sensitive(), num_iterations, "fp32", kill_at=kill_at, marks=marks)
                trained = await _trained(there, f"kill-{kill_at}", spec, num_workers)
                if not _has_mark(Path(marks)):
                    break
            if trained != undisturbed:
                differences.append(kill_at)
    return {"num_workers": num_workers, "num_transfers": kill_at, "differences": differences}


def measure_compiled_join(device: Device, *, num_iterations: int = 800) -> Measured:
    """A worker that joins a compiled model: seconds of the resize, and whether the weights are those of one worker."""
    return asyncio.run(_compiled_join(device, num_iterations))


async def _compiled_join(device: Device, num_iterations: int) -> Measured:
    async with stage(device) as there:
        spec = _spec(Compiled(), num_iterations, "fp32")
        alone = await _trained(there, "alone", spec, 1)
        crew = there.crew("joined", spec, checkpoint_every_s=_NEVER)
        await crew.start(1)
        await crew.until(lambda: crew.holders[0].iteration > 0 or crew.finished is not None, "it has trained")
        joined = bool(crew.holders) and await crew.switch([crew.holders[0], None])
        await crew.until(lambda: not crew.processes, "it has finished")
        timeline = crew.timelines[-1] if joined else None
        return {
            "joined": joined,
            "equal": _digest(crew) == alone,
            "prepare_s": timeline.prepare_s if timeline else None,
            "stop_s": timeline.stop_s if timeline else None,
            "first_step_s": timeline.first_step_s if timeline else None,
        }


def _has_mark(folder: Path) -> bool:
    return any(folder.iterdir())


def _spec(job: Sensitive, num_iterations: int, precision: str, **hyperparameters: Any) -> JobSpec:
    job.set_hyperparameter(global_batch_size=GLOBAL_BATCH_SIZE, precision=precision, **hyperparameters)
    return job.term_condition(max_iterations=num_iterations).set_job_class("best_effort").spec()


async def _trained(there: Stage, job_id: str, spec: JobSpec, num_workers: int) -> str:
    """The digest at the end. Survivors of a lost worker continue."""
    crew = there.crew(job_id, spec, checkpoint_every_s=_NEVER)
    await crew.start(num_workers)
    while crew.processes:
        await crew.until(lambda: not crew.processes or _has_lost_one(crew), "it has finished or lost a worker")
        if crew.processes:
            await crew.shrink_to_survivors()
    return _digest(crew)


def _has_lost_one(crew: Crew) -> bool:
    return crew.finished is None and any(worker.exited is not None for worker in crew.members)


def _digest(crew: Crew) -> str:
    state = crew.newest_state()
    return digest([state["iteration"], state["model"], state["optimizer"]])


def hash_rows(measured: Measured) -> Iterable[Row]:
    workers = ", ".join(map(str, _NUM_WORKERS))
    for precision, equal in measured["equal"].items():
        yield Row(f"weights of {workers} workers, {precision}", "equal" if equal else "DIFFERENT", "equal")


def kill_rows(measured: Measured) -> Iterable[Row]:
    what = f"SIGKILL in each of {measured['num_transfers']} transfers of a step, other weights afterwards"
    yield Row(what, str(len(measured["differences"])), "0")


def compiled_rows(measured: Measured) -> Iterable[Row]:
    parts = ("prepare_s", "stop_s", "first_step_s") if measured["joined"] else ()
    seconds = " + ".join(f"{measured[name]:.2f}" for name in parts) or "-"
    yield Row("a worker joins a compiled model: prepared + stopped + first step, s", seconds)
    yield Row("weights afterwards", "equal" if measured["equal"] else "DIFFERENT", "equal")
