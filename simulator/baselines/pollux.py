"""Pollux: GPUs go to the jobs with the greatest speedup over an equal part of the cluster. It ignores deadlines.

Goodput = throughput x statistical efficiency. A job here has a fixed global batch, whose efficiency is the same on any
number of GPUs: it is taken as 1, so goodput = throughput, and Pollux's choice of batch size is left out. Its genetic
search over placements becomes a greedy one over numbers of GPUs, with the same fitness: the power mean of speedups.
Source: Pollux (Qiao et al., OSDI 2021), section 4.2.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elasticflow.simulator.baselines.baseline import (
    AdmitsAll,
    BaselineJob,
    Shares,
    by_arrival,
    grow,
    running_first,
)
from elasticflow.simulator.baselines.lease_schedulers import at_lease_end, next_lease_end_s

POWER = -1  # of the power mean: the harmonic mean, which counts the slowest most


@dataclass(frozen=True, slots=True)
class Pollux(AdmitsAll):
    """interval_s: between two optimizations; a job that arrives meanwhile starts on its fewest GPUs if free."""

    name: str = "pollux-fixed-batch"
    interval_s: float = 60.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        next_s = next_lease_end_s(now_s, self.interval_s)
        queue = running_first(sorted(jobs, key=by_arrival))
        if not at_lease_end(now_s, self.interval_s):
            held = {job.job_id: job.current_num_gpus for job in jobs}
            return Shares(num_gpus_by_job=_started(queue, num_gpus, held), valid_until_s=next_s)
        shares = _optimized(queue, num_gpus, now_s)
        settled = shares == _optimized(queue, num_gpus, None)  # age makes no change better
        return Shares(num_gpus_by_job=shares, valid_until_s=math.inf if settled else next_s)


def _started(queue: Iterable[BaselineJob], num_gpus: int, held: dict[str, int] | None = None) -> dict[str, int]:
    """Each job its fewest GPUs or those it holds, in this order: without GPUs its speedup would be 0."""
    shares: dict[str, int] = {}
    for job in queue:
        level = (held or {}).get(job.job_id, 0) or job.curve.levels[0]
        if level <= num_gpus:
            shares[job.job_id] = level
            num_gpus -= level
    return shares


def _optimized(queue: Sequence[BaselineJob], num_gpus: int, now_s: float | None) -> dict[str, int]:
    """Give GPUs step by step where each raises the fitness most. now_s: None to ignore the cost of resizes."""
    powers = {job.job_id: _powers(job, num_gpus / len(queue), now_s) for job in queue}

    def step(job: BaselineJob, share: int, num_free: int) -> tuple[float, int]:
        power = powers[job.job_id]
        return max(
            (
                ((power[share] - power[level]) / (level - share), level)
                for level in power
                if share < level <= share + num_free
            ),
            default=(0.0, 0),
        )

    shares = _started(queue, num_gpus)
    grow(queue, shares, num_gpus, step)
    return shares


def _powers(job: BaselineJob, fair_num_gpus: float, now_s: float | None) -> dict[int, float]:
    """Each level's term in the power mean. A speedup is goodput over that on an equal part of the cluster."""
    fair = job.level(int(fair_num_gpus)) or job.curve.levels[0]
    fair_goodput = job.curve.throughput(fair)
    return {
        level: (job.curve.throughput(level) / fair_goodput * _reallocation_factor(job, level, now_s)) ** POWER
        for level in job.curve.levels
    }


def _reallocation_factor(job: BaselineJob, num_gpus: int, now_s: float | None) -> float:
    """The part of its age for which the job would have trained if it is resized as often in future."""
    if now_s is None or not job.current_num_gpus or num_gpus == job.current_num_gpus:
        return 1.0
    age_s, delay_s = now_s - job.submitted_at_s, job.resize_cost.seconds(num_gpus)
    return max(age_s - job.num_resizes * delay_s, 1.0) / (max(age_s, 1.0) + delay_s)
