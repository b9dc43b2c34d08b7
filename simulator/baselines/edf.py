"""Earliest deadline first: without admission control, with it, and with elastic scaling.

The first two give each job its fastest level, or as the published program up to 64 GPUs even where that is slower;
without admission control, deadlines that cannot be met go unnoticed. With elastic scaling, minimum satisfactory shares
are filled in the order of deadlines (Algorithm 1), and the GPUs left now go where their marginal return is greatest
(Algorithm 2); late jobs share in these. The implementation is independent of the scheduler's: it works on pieces of a
step function.
Source: ElasticFlow, sections 4.1, 4.2, 6.1 and 6.4 (EDF + admission control, EDF + elastic scaling); Liu and Layland,
JACM 1973.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from elasticflow.simulator.baselines.baseline import AdmitsAll, BaselineJob, Shares, by_deadline, grow


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirst(AdmitsAll):
    """Jobs without a deadline come last, by arrival.

    most_gpus: as the published program, the most GPUs on which a job runs up to that many, even where fewer are faster.
    """

    name: str = "edf"
    most_gpus: int | None = None

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        ordered = sorted(jobs, key=by_deadline)
        return Shares(num_gpus_by_job=_widest_in_order(ordered, num_gpus, self.most_gpus))


def _widest_in_order(
    jobs_in_order: Sequence[BaselineJob], num_gpus: int, most_gpus: int | None = None
) -> dict[str, int]:
    """Each job its fastest level that is still free, or its largest one up to most_gpus, in this order."""
    shares: dict[str, int] = {}
    for job in jobs_in_order:
        if not num_gpus:
            break
        level = job.level(num_gpus) if most_gpus is None else _largest(job, min(num_gpus, most_gpus))
        if level:
            shares[job.job_id] = level
            num_gpus -= level
    return shares


def _largest(job: BaselineJob, most: int) -> int:
    """The largest level up to `most`, also where it is slower; 0 if there is none."""
    levels = job.curve.num_gpus_L
    fitting = bisect_right(levels, most)
    return levels[fitting - 1] if fitting else 0


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirstWithAdmission:
    """Admission simulates the schedule of all jobs to its end, every resize charged, and foresees no later arrival."""

    name: str = "edf-admission"
    most_gpus: int | None = None  # as above

    def admits(self, arriving: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        if arriving.due_s == math.inf:  # all jobs with deadlines precede it
            return True
        dated = [job for job in jobs if job.due_s < math.inf]
        late = _late([*dated, arriving], num_gpus, now_s, self.most_gpus)
        first = next(late, None)
        if first is None:
            return True
        lost_anyway = set(_late(dated, num_gpus, now_s, self.most_gpus))
        return {first, *late} <= lost_anyway

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        return EarliestDeadlineFirst(most_gpus=self.most_gpus).shares(jobs, num_gpus, now_s)


def _late(jobs: Sequence[BaselineJob], num_gpus: int, now_s: float, most_gpus: int | None) -> Iterator[str]:
    """Jobs that end after their deadline if no other job arrives, in the order of their ends."""
    waiting = sorted(jobs, key=by_deadline)
    while waiting:
        shares = _widest_in_order(waiting, num_gpus, most_gpus)
        if not shares:
            yield from (job.job_id for job in waiting)
            return
        moved = [_moved(job, shares.get(job.job_id, 0), now_s) for job in waiting]
        ends_s = [now_s + job.seconds_left(job.current_num_gpus, now_s) for job in moved]
        next_s = min(ends_s)
        for job, end_s in zip(moved, ends_s, strict=True):
            if end_s == next_s and end_s > job.due_s:
                yield job.job_id
        waiting = [_progressed(job, now_s, next_s) for job, end_s in zip(moved, ends_s, strict=True) if end_s > next_s]
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


class _Held(NamedTuple):
    start_s: float
    end_s: float
    num_gpus: int


@dataclass(frozen=True, slots=True)
class EarliestDeadlineFirstElastic(AdmitsAll):
    """Every job is admitted. Jobs that will be late share in what the others leave."""

    name: str = "edf-elastic-late-last"

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        free, shares = _Free(num_gpus, now_s), dict[str, int]()
        ordered = sorted(jobs, key=by_deadline)
        changes_s: list[float] = []
        for job in ordered:
            schedule = _minimum_satisfactory_share(job, free, now_s) if job.due_s < math.inf else ()
            free.take(schedule)
            changes_s += (at_s for held in schedule for at_s in (held.start_s, held.end_s) if at_s > now_s)
            if schedule and schedule[0].start_s <= now_s < schedule[0].end_s:
                shares[job.job_id] = schedule[0].num_gpus
        until_s = min(changes_s, default=math.inf)
        _share_out_the_rest(ordered, shares, free.lowest_until(until_s), until_s, now_s)
        return Shares(num_gpus_by_job=shares, valid_until_s=until_s)


class _Free:
    """Unplanned GPUs from now on: a step function."""

    def __init__(self, num_gpus: int, now_s: float) -> None:
        self.starts_s, self.num_gpus = [now_s], [num_gpus]

    def take(self, schedule: Sequence[_Held]) -> None:
        for start_s, end_s, num_gpus in schedule:
            for piece in range(self._cut(start_s), self._cut(end_s)):
                self.num_gpus[piece] -= num_gpus

    def lowest_until(self, until_s: float) -> int:
        return min(n for at_s, n in zip(self.starts_s, self.num_gpus, strict=True) if at_s < until_s)

    def _cut(self, at_s: float) -> int:
        piece = bisect_left(self.starts_s, at_s)
        if piece == len(self.starts_s) or self.starts_s[piece] > at_s:
            self.starts_s.insert(piece, at_s)
            self.num_gpus.insert(piece, self.num_gpus[piece - 1])
        return piece


def _minimum_satisfactory_share(job: BaselineJob, free: _Free, now_s: float) -> Sequence[_Held]:
    """The schedule with the smallest cap that ends by the deadline; empty if there is none."""
    for cap in job.curve.levels:
        if now_s + job.remaining_iterations / job.curve.throughput(cap) <= job.due_s and (
            schedule := _fill(job, free, cap, now_s)
        ):
            return schedule
    return ()


def _fill(job: BaselineJob, free: _Free, cap: int, now_s: float) -> list[_Held] | None:
    """The schedule with the largest free level up to the cap at each instant; None if it ends too late.

    Each resize is charged.
    """
    left, share, ready_s = job.remaining_iterations, job.current_num_gpus, now_s
    ready_s += job.stall_s(share, now_s)
    schedule: list[_Held] = []
    for start_s, end_s, num_gpus in zip(free.starts_s, [*free.starts_s[1:], math.inf], free.num_gpus, strict=True):
        level = job.level(min(num_gpus, cap))
        if start_s >= job.due_s:
            return None
        if level != share:
            share, ready_s = level, start_s + job.resize_cost.seconds(level)
        rate = job.curve.throughput(level)
        done_s = max(start_s, ready_s) + left / rate if rate else math.inf
        if done_s <= end_s:
            return [*schedule, _Held(start_s, done_s, level)] if done_s <= job.due_s else None
        if level:
            schedule.append(_Held(start_s, end_s, level))
        left -= rate * max(end_s - max(start_s, ready_s), 0.0)
    return None


def _share_out_the_rest(
    ordered: Sequence[BaselineJob], shares: dict[str, int], num_free: int, until_s: float, now_s: float
) -> None:
    """First jobs keep their GPUs, then each job gets its fewest, then the greatest marginal return decides."""

    def give(job: BaselineJob, level: int) -> None:
        nonlocal num_free
        num_free -= level - shares.get(job.job_id, 0)
        shares[job.job_id] = level

    for job in ordered:
        held, share = job.current_num_gpus, shares.get(job.job_id, 0)
        if share < held <= share + num_free and held in job.curve.levels:
            give(job, held)
    for job in ordered:
        if job.job_id not in shares and job.curve.levels[0] <= num_free:
            give(job, job.curve.levels[0])
    grow(ordered, shares, num_free + sum(shares.values()), partial(_step, until_s=until_s, now_s=now_s))


def _step(job: BaselineJob, share: int, num_free: int, *, until_s: float, now_s: float) -> tuple[float, int]:
    """Throughput gained for each added GPU, relative to that on its fewest GPUs, and the next level."""
    rate, level = job.curve.throughput, job.curve.next_level.get(share, 0)
    if not level or level > share + num_free or not _pays(job, level, until_s, now_s):
        return 0.0, 0
    return (rate(level) - rate(share)) / (level - share) / rate(job.curve.levels[0]), level


def _pays(job: BaselineJob, level: int, until_s: float, now_s: float) -> bool:
    """Whether the job does more iterations at this level than at its own, until the plan changes or it ends."""
    rate, held = job.curve.throughput(level), job.curve.throughput(job.current_num_gpus)
    window_s = min(until_s - now_s, job.seconds_left(level, now_s))
    stay_s, move_s = (job.stall_s(n, now_s) for n in (job.current_num_gpus, level))
    return rate * max(window_s - move_s, 0.0) >= held * max(window_s - stay_s, 0.0)
