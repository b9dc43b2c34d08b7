"""Earliest deadline first, without and with admission control. Each job has its fastest level.

Without admission control, deadlines that cannot be met go unnoticed.
Source: ElasticFlow, section 6.1 and 6.4 (EDF + admission control); Liu and Layland, JACM 1973.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from elasticflow.simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, by_deadline


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst(AdmitsAll):
    """Jobs without a deadline come last, by arrival."""

    name: str = "edf"

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return Shares(num_gpus_by_job=_widest_in_order(sorted(jobs, key=by_deadline), num_gpus))


def _widest_in_order(jobs_in_order: Sequence[BaselineJob], num_gpus: int) -> dict[str, int]:
    """Each job its fastest level that is still free, in this order."""
    shares: dict[str, int] = {}
    for job in jobs_in_order:
        if not num_gpus:
            break
        if level := job.level(num_gpus):
            shares[job.job_id] = level
            num_gpus -= level
    return shares


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirstWithAdmission:
    """Admission simulates the schedule of all jobs to its end, every resize charged, and foresees no later arrival."""

    name: str = "edf-admission"

    def admits(self, arriving: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        if arriving.due_s == math.inf:  # all jobs with deadlines precede it
            return True
        dated = [job for job in jobs if job.due_s < math.inf]
        late = _late([*dated, arriving], num_gpus, now_s)
        first = next(late, None)
        if first is None:
            return True
        lost_anyway = set(_late(dated, num_gpus, now_s))
        return {first, *late} <= lost_anyway

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return EarliestDeadlineFirst().shares(jobs, num_gpus, now_s)


def _late(jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Iterator[str]:
    """Jobs that end after their deadline if no other job arrives, in the order of their ends."""
    waiting = sorted(jobs, key=by_deadline)
    while waiting:
        shares = _widest_in_order(waiting, num_gpus)
        if not shares:
            yield from (job.job_id for job in waiting)
            return
        moved = [_moved(job, shares.get(job.job_id, 0), now_s) for job in waiting]
        ends_s = [now_s + job.seconds_left(job.current_num_gpus, now_s) for job in moved]
        next_s = min(ends_s)
        for job, end_s in zip(moved, ends_s, strict=True):
            if end_s == next_s and end_s > job.due_s:
                yield job.job_id
        waiting = [
            _progressed(job, now_s, next_s)
            for job, end_s in zip(moved, ends_s, strict=True)
            if end_s > next_s
        ]
        now_s = next_s


def _moved(job: BaselineJob, num_gpus: int, now_s: float) -> BaselineJob:
    if num_gpus == job.current_num_gpus:
        return job
    return replace(job, current_num_gpus=num_gpus, held_since_s=now_s)


def _progressed(job: BaselineJob, from_s: float, to_s: float) -> BaselineJob:
    if not job.current_num_gpus:
        return job
    worked_s = max(to_s - from_s - job.stall_s(job.current_num_gpus, from_s), 0.0)
    done = job.curve.throughput(job.current_num_gpus) * worked_s
    return replace(job, remaining_iterations=job.remaining_iterations - done)
