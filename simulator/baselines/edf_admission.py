"""Earliest deadline first, and nobody comes in who would make a deadline slip.

Source: ElasticFlow, section 6.4 (EDF + admission control).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.baselines.baseline import BaselineJob, Shares, by_deadline
from simulator.baselines.edf import EarliestDeadlineFirst, widest_in_order


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirstWithAdmission:
    """Admission plays the schedule of all jobs to its end, every resize charged; later arrivals are not foreseen."""

    name: str = "edf-admission"

    def admits(self, newcomer: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        if newcomer.due_s == math.inf:  # it comes after all deadlines
            return True
        dated = [job for job in jobs if job.due_s < math.inf]
        late = _late([*dated, newcomer], num_gpus, now_s)
        first = next(late, None)
        if first is None:
            return True
        lost_anyway = set(_late(dated, num_gpus, now_s))
        return {first, *late} <= lost_anyway

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return EarliestDeadlineFirst().shares(jobs, num_gpus, now_s)


def _late(jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Iterator[str]:
    """Jobs that end after their deadline if nobody else comes, as they end."""
    waiting = sorted(jobs, key=by_deadline)
    while waiting:
        shares = widest_in_order(waiting, num_gpus)
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
