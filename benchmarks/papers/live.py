"""Measurements on CPU slots that stand beside figures of the papers: analogues, never reproductions.

The name of a measurement is that in analogues.toml; the setup of an analogue is its arguments. The baselines' own rules
(`elasticflow.simulator.baselines`) decide over three jobs; real workers start, switch and train.
"""

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.engine.crew import Crew, Engine, running_engine
from benchmarks.engine.models import PerceptronOfSixteen
from benchmarks.engine.resizes import Resized
from benchmarks.engine.sensitive import digest
from benchmarks.engine.stage import Stage, stage
from benchmarks.engine.timed import Timed, timed_spec
from benchmarks.engine.transient import Lending, measure_transient
from benchmarks.padding.preempted import measure_preempted
from benchmarks.papers.analogues import Analogue
from benchmarks.papers.digits_jobs import NUM_VIRTUAL_NODES, NaiveDigits, NoisyDigits
from benchmarks.papers.execution import code_digest, write_json
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob
from elasticflow.simulator.baselines.schedulers_without_deadlines import StaticPriority, WeightedFairSharing

# --- accuracies ----------------------------------------------------------------------------------------


_NUM_SAMPLES = 1500  # of the training set


def accuracy(
    *, seed: int, workers: Sequence[int], batch_size: int, epochs: int, learning_rate: float, wrong_labels: float
) -> Mapping[str, float]:
    """Percent at the end, by kind and number of workers; and the final states that differ from that of one worker.

    A naive worker keeps its batch, as its memory would demand: the global batch is its part of batch_size, times the
    number of workers. All train for as many epochs, at the learning rate of the whole batch.
    """
    settings = {"learning_rate": learning_rate, "wrong_labels": wrong_labels}

    async def measure() -> dict[str, float]:
        numbers, states = dict[str, float](), list[str]()
        async with stage() as there:
            for num_workers in workers:
                job = NoisyDigits().set_hyperparameter(global_batch_size=batch_size, **settings)
                numbers[f"virtualflow-{num_workers}"], state = await _trained(there, job, num_workers, seed, epochs)
                states.append(state)
                job = NaiveDigits().set_hyperparameter(
                    global_batch_size=num_workers * batch_size // NUM_VIRTUAL_NODES, **settings
                )
                numbers[f"naive-{num_workers}"], _ = await _trained(there, job, num_workers, seed, epochs)
        return numbers | {"different-states": float(sum(state != states[0] for state in states))}

    return asyncio.run(measure())


async def _trained(there: Stage, job: NoisyDigits, num_workers: int, seed: int, epochs: int) -> tuple[float, str]:
    """Percent of the held-out images, and a digest of the model."""
    job.seed = seed
    batch_size = int(job.hyperparameters["global_batch_size"])
    spec = job.term_condition(max_iterations=epochs * _NUM_SAMPLES // batch_size).set_job_class("best_effort").spec()
    crew = there.crew(f"{type(job).__name__.lower()}-{num_workers}-{seed}", spec, checkpoint_every_s=1e6)
    await crew.start(num_workers)
    await crew.until(lambda: not crew.processes, "it has finished")
    state = crew.newest_state()
    model = job.init_model()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        return 100.0 * job.evaluate(model.eval())["accuracy"], digest(state["model"])


# --- changes of workers --------------------------------------------------------------------------------


Change = tuple[str, int, Sequence[int | None]]  # name, workers before, and each new rank's old one


def changes(*, million_parameters: int, rounds: int) -> Mapping[str, float]:
    """Medians in seconds.

    preparation, stop: of workers that switch; only in the stop no worker trains. restart: from the command to the first
    step through a checkpoint, the interval that the paper reports.
    """
    return asyncio.run(_measured(million_parameters, rounds))


def _five_changes() -> tuple[Change, ...]:
    grown = [*range(8), *[None] * 8]
    return (
        ("1-to-2", 1, [0, None]),
        ("2-to-1", 2, [0]),
        ("8-to-16", 8, grown),
        ("16-to-8", 16, range(8)),
        ("migration-8", 8, [None] * 8),
    )


async def _measured(million_parameters: int, rounds: int) -> dict[str, float]:
    numbers = dict[str, float]()
    async with running_engine() as engine:
        for change in _five_changes():
            numbers |= await _of_change(engine, change, million_parameters, rounds)
    numbers["preparation-share-1-to-2"] = numbers["preparation-1-to-2"] / (
        numbers["preparation-1-to-2"] + numbers["stop-1-to-2"]
    )
    numbers["saved-1-to-2"] = 1.0 - numbers["stop-1-to-2"] / numbers["restart-1-to-2"]
    return numbers


async def _of_change(engine: Engine, change: Change, million_parameters: int, rounds: int) -> dict[str, float]:
    name, before, members = change
    restarts_s, stops_s, preparations_s = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        job = Resized(engine, million_parameters, PerceptronOfSixteen)
        restarts_s.append(await job.restart(await job.start(before, generation=1), len(members)))
        workers, timeline = await job.switch(await job.start(before, generation=3), members, num_reports=0)
        stops_s.append(timeline.stop_s)
        preparations_s.append(timeline.prepare_s)
        for worker in workers:
            worker.kill()
    return {
        f"restart-{name}": statistics.median(restarts_s),
        f"stop-{name}": statistics.median(stops_s),
        f"preparation-{name}": statistics.median(preparations_s),
    }


# --- lent GPUs -----------------------------------------------------------------------------------------


_WAYS = {"gone-over": "switch", "stopped-and-resumed": "stop-resume"}


class TimedOfTwelve(Timed):
    """Its virtual nodes divide evenly over 2, 3, 4 and 6 workers."""

    BATCH_SIZE = 24
    virtual_nodes: ClassVar[int] = 12


def lent_gpus(*, own: int, lent: int, period_s: float, rounds: int, million_parameters: int) -> Mapping[str, float]:
    """Numbers by way and number of lent slots: the part of the ideal; the work over that of the own slots alone; and
    the shortest interval at which borrowing gains, in seconds.
    """
    rows = asyncio.run(
        measure_transient(
            million_parameters,
            Lending(period_s=period_s, own=own, lent=lent),
            rounds=rounds,
            job_class=TimedOfTwelve,
        )
    )
    numbers = dict[str, float]()
    for row in rows:
        name = f"{_WAYS[row['way']]}-{lent}"
        numbers |= {
            f"part-of-ideal-{name}": row["of_ideal"],
            f"over-own-{name}": row["of_own_gpus_alone"],
            f"break-even-s-{name}": row["breaks_even_s"],
        }
    return numbers


# --- three jobs ----------------------------------------------------------------------------------------


_LOOK_S = 0.02
_LEVELS = (1, 2, 4)


@dataclass(kw_only=True)
class _Job:
    """num_gpus: held now. at_s: of its arrival, from the begin of the run."""

    name: str
    at_s: float
    requested: int
    weight: float
    crew: Crew
    rate_per_s: float  # of one worker
    num_gpus: int = 0
    finished_s: float | None = None

    def seen(self) -> BaselineJob:
        curve = ScalingCurve(_LEVELS, tuple(level * self.rate_per_s for level in _LEVELS))
        return BaselineJob(
            job_id=self.name,
            submitted_at_s=self.at_s,
            deadline_s=None,
            job_class=JobClass.BEST_EFFORT,
            curve=curve,
            remaining_iterations=1.0,
            num_iterations=1.0,
            requested_num_gpus=self.requested,
            current_num_gpus=self.num_gpus,
            held_since_s=self.at_s,
            weight=self.weight,
        )


def three_jobs(
    *,
    num_gpus: int,
    step_s: float,
    arrivals_s: Sequence[float],
    requested: Sequence[int],
    priorities: Sequence[float],
    iterations: Sequence[int],
) -> Mapping[str, float]:
    """Saved by fair sharing, as parts: makespan, and completion time of the job of the highest priority."""
    jobs = list(zip(arrivals_s, requested, priorities, iterations, strict=True))
    fair, fair_states = asyncio.run(_run(WeightedFairSharing(), jobs, num_gpus, step_s))
    static, static_states = asyncio.run(_run(StaticPriority(), jobs, num_gpus, step_s))
    first = max(range(len(jobs)), key=lambda number: priorities[number])
    jct_s = [ends_s[first] - arrivals_s[first] for ends_s in (fair, static)]
    return {
        "makespan-s-fair": max(fair),
        "makespan-s-static": max(static),
        "makespan-saved": 1.0 - max(fair) / max(static),
        "jct-s-fair": jct_s[0],
        "jct-s-static": jct_s[1],
        "jct-saved": 1.0 - jct_s[0] / jct_s[1],
        "different-states": float(sum(one != other for one, other in zip(fair_states, static_states, strict=True))),
    }


async def _run(
    baseline: Baseline, given: Sequence[tuple[float, int, float, int]], num_gpus: int, step_s: float
) -> tuple[list[float], list[str]]:
    """When each job ended, from the begin; and a digest of what it trained."""
    with tempfile.TemporaryDirectory() as notes:
        async with stage() as there:
            jobs = list[_Job]()
            for number, (at_s, requested, weight, iterations) in enumerate(given):
                folder = Path(notes) / str(number)
                folder.mkdir()
                spec = timed_spec(folder, million_parameters=1, step_s=step_s, max_iterations=iterations)
                crew = there.crew(f"{baseline.name}-{number}", spec, checkpoint_every_s=1e6)
                name = f"job-{number}"
                jobs.append(
                    _Job(name=name, at_s=at_s, requested=requested, weight=weight, crew=crew, rate_per_s=1 / step_s)
                )
            await _play(baseline, jobs, num_gpus)
            digests = [digest(job.crew.newest_state()["model"]) for job in jobs]
    return [job.finished_s for job in jobs if job.finished_s is not None], digests


async def _play(baseline: Baseline, jobs: Sequence[_Job], num_gpus: int) -> None:
    """Decide at each arrival and each end, until all have ended."""
    began_s = time.monotonic()
    known: tuple[str, ...] = ()
    while any(job.finished_s is None for job in jobs):
        now_s = time.monotonic() - began_s
        for job in jobs:
            if job.finished_s is None and job.crew.finished is not None:
                job.finished_s, job.num_gpus = now_s, 0
        live = [job for job in jobs if job.at_s <= now_s and job.finished_s is None]
        names = tuple(job.name for job in live)
        if names != known:
            known = names
            shares = baseline.shares([job.seen() for job in live], num_gpus, now_s).num_gpus_by_job
            for job in sorted(live, key=lambda job: shares.get(job.name, 0) - job.num_gpus):  # who shrinks is first
                await _resize(job, shares.get(job.name, 0))
        await asyncio.sleep(_LOOK_S)
    for job in jobs:
        await job.crew.until(lambda job=job: not job.crew.processes, "its workers have ended")


async def _resize(job: _Job, num_gpus: int) -> None:
    if num_gpus == job.num_gpus or job.crew.finished is not None:
        return
    if job.num_gpus == 0:
        await job.crew.start(num_gpus)
    elif num_gpus == 0:
        await job.crew.suspend()
    else:
        await job.crew.resize(num_gpus)
    job.num_gpus = num_gpus


# --- a padding load ------------------------------------------------------------------------------------


def padding(*, num_tasks: int) -> Mapping[str, float]:
    """The time over that of exclusive use, by the paper's intervals; here all times are a tenth."""
    rows = asyncio.run(measure_preempted(num_tasks=num_tasks))
    return {f"every-{10 * row['window_s']:.0f}-s": row["ratio"] for row in rows}


# --- all of them ---------------------------------------------------------------------------------------


MEASURES: Mapping[str, Callable[..., Mapping[str, float]]] = {
    "changes": changes,
    "lent_gpus": lent_gpus,
    "accuracy": accuracy,
    "three_jobs": three_jobs,
    "padding": padding,
}


def measure_part(analogue: Analogue, part: int) -> dict[str, Any]:
    """The numbers of one part, the load of the machine before and after it, and how long it took."""
    before, began_s = os.getloadavg()[0], time.monotonic()
    numbers = MEASURES[analogue.measure](**analogue.settings(part))
    return {
        "setup": analogue.settings(part),
        "numbers": dict(numbers),
        "load_average": [before, os.getloadavg()[0]],
        "wall_s": round(time.monotonic() - began_s, 1),
    }


# --- stored numbers ------------------------------------------------------------------------------------


class LiveStore:
    """folder: of the report. Parts that were measured with another setup or code do not count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "live"
        self._folder.mkdir(parents=True, exist_ok=True)

    def forget(self, analogues: Sequence[Analogue]) -> None:
        """Delete what is stored of these."""
        for analogue in analogues:
            for part in range(len(analogue.parts)):
                self._file(analogue, part).unlink(missing_ok=True)

    def keep(self, analogue: Analogue, part: int, result: Mapping[str, Any]) -> None:
        """Write at once: an interruption loses only the part in progress."""
        write_json(self._file(analogue, part), {**result, "code": code_digest()})

    def result(self, analogue: Analogue, part: int) -> Mapping[str, Any] | None:
        """The result of a part; None if it was not measured yet."""
        file = self._file(analogue, part)
        if not file.exists():
            return None
        result = json.loads(file.read_text(encoding="utf-8"))
        is_same = (result["setup"], result.get("code")) == (analogue.settings(part), code_digest())
        return result if is_same else None

    def to_do(self, analogues: Sequence[Analogue]) -> list[tuple[Analogue, int]]:
        """Analogues and parts without a result."""
        parts = [(analogue, part) for analogue in analogues for part in range(len(analogue.parts))]
        return [(analogue, part) for analogue, part in parts if self.result(analogue, part) is None]

    def _file(self, analogue: Analogue, part: int) -> Path:
        return self._folder / f"{analogue.run_id(part)}.json"
