"""Jobs as the algorithms see them at one instant: one by one with names, and many as rows of arrays.

Axes: J = rows; L = levels; M = segments.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shared.scheduling.compiled import Integers
from shared.scheduling.filling import Jobs
from shared.scheduling.profile import MAX_SEGMENTS, Schedules, empty_schedules
from shared.scheduling.resize_cost import ResizeCost
from shared.scheduling.scaling_curve import ScalingCurve

_NO_LEVEL = 1 << 40  # GPUs: more than there ever are


class Segment(NamedTuple):
    """`num_gpus` GPUs held from `start_s` until `end_s`."""

    start_s: float
    end_s: float
    num_gpus: int


Schedule = tuple[Segment, ...]
"""The GPUs one job holds over time: disjoint segments in order; the job ends with the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulableJob:
    """What the scheduler needs to know of a job at one instant."""

    job_id: str
    curve: ScalingCurve
    remaining_iterations: float
    deadline_s: float = math.inf  # inf: none
    current_num_gpus: int = 0
    resize_cost: ResizeCost = field(default_factory=ResizeCost)
    stalled_until_s: float = -math.inf  # no progress before: a resize is under way
    reserve_nodes: int = 0  # its schedule must bear failures of so many nodes at once, one after another
    notice_s: float = 0.0  # from a failure until the job starts anew


def end_s(schedule: Schedule) -> float:
    """When the job of `schedule` ends; -inf for the empty schedule of a job with nothing left to do."""
    return schedule[-1].end_s if schedule else -math.inf


def gpu_seconds(schedule: Schedule) -> float:
    """GPUs held times how long, stops included."""
    return sum((until_s - start_s) * num_gpus for start_s, until_s, num_gpus in schedule)


def share_at(schedule: Schedule, at_s: float) -> int:
    """GPUs held at an instant."""
    return next((segment.num_gpus for segment in schedule if segment.start_s <= at_s < segment.end_s), 0)


class JobTable:
    """Rows of jobs and of their schedules, with room for more; the first `num_jobs` count."""

    __slots__ = ("job_ids", "jobs", "num_jobs", "schedules")

    def __init__(self, job_ids: list[str], jobs: Jobs, schedules: Schedules) -> None:
        self.job_ids, self.jobs, self.schedules = job_ids, jobs, schedules
        self.num_jobs = len(job_ids)

    @staticmethod
    def of(jobs: Iterable[SchedulableJob]) -> "JobTable":
        """One row for each, without schedules."""
        listed = list(jobs)
        num_levels = max((len(job.curve.levels) for job in listed), default=1)
        table = JobTable([], empty_jobs(len(listed), num_levels), empty_schedules(len(listed)))
        for job in listed:
            table.append(job)
        return table

    def append(self, job: SchedulableJob) -> int:
        """One more row; which it is."""
        row = self.num_jobs
        levels = job.curve.levels
        if row == self.jobs.remaining_J.shape[0] or len(levels) > self.jobs.levels_JL.shape[1]:
            self._grow(len(levels))
        write_levels(self.jobs, row, job.curve, job.resize_cost)
        write_failures(self.jobs, row, job.reserve_nodes, job.notice_s)
        self.jobs.remaining_J[row] = job.remaining_iterations
        self.jobs.held_J[row] = job.current_num_gpus
        self.jobs.stalled_until_J[row] = job.stalled_until_s
        self.jobs.deadline_J[row] = job.deadline_s
        self.schedules.count_J[row] = 0
        self.job_ids.append(job.job_id)
        self.num_jobs += 1
        return row

    def pop(self) -> None:
        """Forget the last row."""
        self.job_ids.pop()
        self.num_jobs -= 1

    def schedule(self, row: int) -> Schedule:
        """The schedule of a row, one by one."""
        return schedule_of(self.schedules, row)

    def write_schedule(self, row: int, schedule: Sequence[float]) -> None:
        """Give a row a schedule: start_s, end_s, num_gpus of each segment."""
        write_schedule(self.schedules, row, schedule)

    def earliest_deadline_first(self, rows: Integers) -> Integers:
        """The rows by deadline, ties by id."""
        ids = np.array([self.job_ids[row] for row in rows], dtype=np.str_)
        return rows[np.lexsort((ids, self.jobs.deadline_J[rows]))] if len(rows) else rows

    def _grow(self, num_levels: int) -> None:
        """Twice the rows, and as many levels as asked for."""
        num_rows = max(2 * self.jobs.remaining_J.shape[0], 8)
        self.jobs = with_room(self.jobs, num_rows, max(num_levels, self.jobs.levels_JL.shape[1]))
        self.schedules = with_rows(self.schedules, num_rows)


def schedule_of(schedules: Schedules, row: int) -> Schedule:
    """The schedule of a row, segment by segment."""
    starts, ends, num_gpus, count = schedules
    return tuple(
        Segment(float(starts[row, k]), float(ends[row, k]), int(num_gpus[row, k])) for k in range(count[row])
    )


def with_room(jobs: Jobs, num_rows: int, num_levels: int) -> Jobs:
    """The same rows, with room for more of them and for more levels."""
    larger = empty_jobs(num_rows, num_levels)
    for new, old in zip(larger, jobs, strict=True):
        new[tuple(slice(0, size) for size in old.shape)] = old
    return larger


def with_rows(schedules: Schedules, num_rows: int) -> Schedules:
    """The same schedules, with room for more."""
    larger = empty_schedules(num_rows)
    for new, old in zip(larger, schedules, strict=True):
        new[: len(old)] = old
    return larger


def empty_jobs(num_rows: int, num_levels: int) -> Jobs:
    """Room for so many rows."""
    return Jobs(
        np.full((num_rows, num_levels), _NO_LEVEL, np.int64),
        np.zeros((num_rows, num_levels)),
        np.zeros((num_rows, num_levels)),
        np.zeros(num_rows, np.int64),
        np.zeros(num_rows),
        np.zeros(num_rows, np.int64),
        np.full(num_rows, -np.inf),
        np.full(num_rows, np.inf),
        np.zeros((num_rows, num_levels)),
    )


def write_levels(jobs: Jobs, row: int, curve: ScalingCurve, cost: ResizeCost) -> None:
    """The levels worth using of a curve, and what a change to each costs."""
    count = len(curve.levels)
    jobs.num_levels_J[row] = count
    jobs.levels_JL[row] = _NO_LEVEL
    jobs.levels_JL[row, :count] = curve.levels
    jobs.rates_JL[row, :count] = [curve.rate_by_num_gpus[level] for level in curve.levels]
    jobs.costs_JL[row, :count] = [cost.seconds(level) for level in curve.levels]


def write_failures(jobs: Jobs, row: int, reserve_nodes: int, notice_s: float) -> None:
    """What failures may cost: each a stop, at the worst on the level where a stop costs most, up to each level."""
    stops_s = jobs.costs_JL[row] + notice_s
    jobs.lost_JL[row] = reserve_nodes * np.maximum.accumulate(jobs.rates_JL[row] * stops_s)


def write_schedule(schedules: Schedules, row: int, numbers: Sequence[float]) -> None:
    """start_s, end_s, num_gpus of each segment; a schedule of too many segments counts as none."""
    count = len(numbers) // 3 if len(numbers) <= 3 * MAX_SEGMENTS else 0
    schedules.count_J[row] = count
    for segment in range(count):
        schedules.start_JM[row, segment] = numbers[3 * segment]
        schedules.end_JM[row, segment] = numbers[3 * segment + 1]
        schedules.num_gpus_JM[row, segment] = numbers[3 * segment + 2]
