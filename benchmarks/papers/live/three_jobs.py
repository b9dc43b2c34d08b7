"""Three jobs on four slots under elastic fair sharing and under static priority (VirtualFlow, Figure 10).

The baselines' own rules (`elasticflow.simulator.baselines`) decide; real workers start, switch and train.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine.crew import Crew
from benchmarks.engine.sensitive import digest
from benchmarks.engine.stage import stage
from benchmarks.engine.timed import timed_spec
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob
from elasticflow.simulator.baselines.priority_schedulers import StaticPriority, WeightedFairSharing

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
