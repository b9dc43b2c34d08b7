"""Goodput: GPUs go where they speed jobs up most, compared with an equal part of the cluster. Deadline-blind.

Goodput = throughput x statistical efficiency. A job here has a fixed global batch, whose efficiency is the same on any
number of GPUs: it is taken as 1, so goodput = throughput, and Pollux's choice of batch size has no part. Its genetic
search over placements becomes a greedy one over numbers of GPUs, of the same fitness: the power mean of speedups.
Source: Pollux (Qiao et al., OSDI 2021), section 4.2.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.baselines.baseline import (
    AdmitsAll,
    BaselineJob,
    Shares,
    at_lease_end,
    by_arrival,
    next_lease_end_s,
    running_first,
)
from simulator.baselines.greedy import grow

POWER = -1  # of the power mean: the harmonic mean, which counts the slowest most


@dataclass(frozen=True, slots=True)
class Pollux(AdmitsAll):
    """interval_s: between two optimizations; a job that comes meanwhile starts on its fewest GPUs, if they are free."""

    name: str = "pollux"
    interval_s: float = 60.0

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        next_s = next_lease_end_s(now_s, self.interval_s)
        queue = running_first(sorted(jobs, key=by_arrival))
        if not at_lease_end(now_s, self.interval_s):
            held = {job.job_id: job.current_num_gpus for job in jobs}
            return Shares(num_gpus_by_job=_started(queue, num_gpus, held), valid_until_s=next_s)
        shares = _optimized(queue, num_gpus, now_s)
        settled = shares == _optimized(queue, num_gpus, None)  # growing older, a job makes a change no better
        return Shares(num_gpus_by_job=shares, valid_until_s=math.inf if settled else next_s)


def _started(
    queue: Iterable[BaselineJob], num_gpus: int, held: dict[str, int] | None = None
) -> dict[str, int]:
    """Each job its fewest GPUs or what it holds, in this order: without any its speedup would be 0."""
    shares: dict[str, int] = {}
    for job in queue:
        level = (held or {}).get(job.job_id, 0) or job.curve.levels[0]
        if level <= num_gpus:
            shares[job.job_id] = level
            num_gpus -= level
    return shares


def _optimized(queue: Sequence[BaselineJob], num_gpus: int, now_s: float | None) -> dict[str, int]:
    """Step by step to whom it raises the fitness most for each GPU. now_s: None to leave out what a move costs."""
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
    """By level: its part in the power mean. A speedup is goodput over that on an equal part of the cluster."""
    fair = job.level(int(fair_num_gpus)) or job.curve.levels[0]
    fair_goodput = job.curve.throughput(fair)
    return {
        level: (job.curve.throughput(level) / fair_goodput * _reallocation_factor(job, level, now_s)) ** POWER
        for level in job.curve.levels
    }


def _reallocation_factor(job: BaselineJob, num_gpus: int, now_s: float | None) -> float:
    """The part of its life for which a job would have worked if it went on being moved as often."""
    if now_s is None or not job.current_num_gpus or num_gpus == job.current_num_gpus:
        return 1.0
    age_s, delay_s = now_s - job.submitted_at_s, job.resize_cost.seconds(num_gpus)
    return max(age_s - job.num_resizes * delay_s, 1.0) / (max(age_s, 1.0) + delay_s)
