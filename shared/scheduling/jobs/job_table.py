"""Jobs as the algorithms see them at one instant: single jobs with names, and many jobs as rows of arrays.

Axes: J = rows; L = levels; M = segments; K = some rows; S = all segments of these.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from elasticflow.shared.messages.gpus import ShareSchedule, ShareSegment
from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    Schedules,
    copy_schedule,
    empty_schedules,
)
from elasticflow.shared.scheduling.availability.fill import Jobs
from elasticflow.shared.scheduling.compiled_loops import Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE, Disturbances, ResizeCost, ScalingCurve

LONG_AGO_S = 1e12  # a job that has never migrated

Schedule = tuple[ShareSegment, ...]
"""The GPUs one job holds over time: disjoint segments in order; the job ends with the last of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulableJob:
    """The inputs of the scheduler for one job at one instant."""

    job_id: str
    curve: ScalingCurve
    remaining_iterations: float
    deadline_s: float = math.inf  # inf: none
    current_num_gpus: int = 0
    resize_cost: ResizeCost = FREE
    stalled_until_s: float = -math.inf  # no progress before: a resize is in progress
    reserve_nodes: int = 0  # its schedule allows for failures of this many nodes at once, repeatedly
    notice_s: float = 0.0  # from a failure until the job restarts
    unsaved_iterations: float = 0.0  # that its next change of GPUs loses
    starts_over: bool = False  # each change of GPUs loses all iterations
    migration_cost: ResizeCost = FREE
    migration_budget: float = 0.0  # of its time, and one migration at once; 0: it never migrates
    gpus_per_replica: int = 1  # so many GPUs of one node belong together

    def asks_no_less_than(self, other: "SchedulableJob") -> bool:
        """Whether it has the curve of the other, no less work, is due no later, and has no less room to migrate, nor
        smaller replicas."""
        return (
            self.curve == other.curve
            and self.gpus_per_replica >= other.gpus_per_replica
            and self.migration_budget >= other.migration_budget
            and self.deadline_s <= other.deadline_s
            and self.remaining_iterations >= other.remaining_iterations
        )


def end_s(schedule: Schedule) -> float:
    """When the job of `schedule` ends; -inf for the empty schedule of a job without remaining work."""
    return schedule[-1].end_s if schedule else -math.inf


def gpu_seconds(schedule: Schedule) -> float:
    """GPU-seconds of a schedule, stops included."""
    return sum((until_s - start_s) * num_gpus for start_s, until_s, num_gpus in schedule)


class JobTable:
    """Rows of jobs and of their schedules, with spare capacity; the first `num_jobs` are valid."""

    __slots__ = ("job_ids", "jobs", "num_jobs", "schedules")

    def __init__(self, job_ids: list[str], jobs: Jobs, schedules: Schedules) -> None:
        self.job_ids, self.jobs, self.schedules = job_ids, jobs, schedules
        self.num_jobs = len(job_ids)

    @staticmethod
    def of(jobs: Iterable[SchedulableJob]) -> "JobTable":
        """One row for each job, without schedules."""
        listed = list(jobs)
        num_levels = max((len(job.curve.levels) for job in listed), default=1)
        table = JobTable([], empty_jobs(len(listed), num_levels), empty_schedules(len(listed)))
        for job in listed:
            table.append(job)
        return table

    def append(self, job: SchedulableJob) -> int:
        """Add a row and return its index."""
        row = self.num_jobs
        levels = job.curve.levels
        if row == self.jobs.remaining_J.shape[0] or len(levels) > self.jobs.levels_JL.shape[1]:
            self._grow(len(levels))
        disturbances = Disturbances(job.reserve_nodes, job.notice_s, job.migration_cost)
        write_levels(self.jobs, row, job.curve, job.resize_cost, disturbances)
        self.jobs.remaining_J[row] = job.remaining_iterations
        self.jobs.held_J[row] = job.current_num_gpus
        self.jobs.stalled_until_J[row] = job.stalled_until_s
        self.jobs.deadline_J[row] = job.deadline_s
        self.jobs.unsaved_J[row] = job.unsaved_iterations
        self.jobs.starts_over_J[row] = job.starts_over
        self.jobs.since_migration_J[row] = LONG_AGO_S
        self.jobs.migration_budget_J[row] = job.migration_budget
        self.schedules.count_J[row] = 0
        self.job_ids.append(job.job_id)
        self.num_jobs += 1
        return row

    def pop(self) -> None:
        """Remove the last row."""
        self.job_ids.pop()
        self.num_jobs -= 1

    def set_moves(self, moves_s: Sequence[float]) -> None:
        """Let each job have to move once at each of these instants, which ascend."""
        self.jobs = self.jobs._replace(moves_s=np.array(moves_s, np.float64))

    def schedule(self, row: int) -> Schedule:
        """The schedule of a row."""
        return schedule_of(self.schedules, row)

    def write_schedule(self, row: int, schedule: Sequence[float]) -> None:
        """Store a schedule for a row: start_s, end_s, num_gpus of each segment."""
        write_schedules(self.schedules, [row], [schedule])

    def _grow(self, num_levels: int) -> None:
        """Double the rows, and make space for `num_levels` levels."""
        num_rows = max(2 * self.jobs.remaining_J.shape[0], 8)
        self.jobs = with_room(self.jobs, num_rows, max(num_levels, self.jobs.levels_JL.shape[1]))
        self.schedules = with_rows(self.schedules, num_rows)


def schedule_of(schedules: Schedules, row: int) -> Schedule:
    """The schedule of a row, segment by segment."""
    *columns, count = schedules
    return tuple(map(ShareSegment, *(column[row, : count[row]].tolist() for column in columns)))


def flat_schedules(schedules: Schedules, rows: Sequence[int]) -> list[ShareSchedule]:
    """The schedules of these rows as events carry them, read together."""
    *columns, count = schedules
    row_K = np.array(rows, np.int64)
    counts = count[row_K]
    longest = int(counts.max(initial=0))
    by_row = zip(*(column[row_K, :longest].tolist() for column in columns), counts.tolist(), strict=True)
    return [
        tuple(chain.from_iterable(zip(starts[:num], ends[:num], num_gpus[:num], strict=True)))
        for starts, ends, num_gpus, num in by_row
    ]


def with_room(jobs: Jobs, num_rows: int, num_levels: int) -> Jobs:
    """The same rows, with capacity for more rows and levels."""
    larger = empty_jobs(num_rows, num_levels)._replace(moves_s=jobs.moves_s)
    for new, old in zip(larger, jobs, strict=True):
        new[tuple(slice(0, size) for size in old.shape)] = old
    return larger


def with_rows(schedules: Schedules, num_rows: int) -> Schedules:
    """The same schedules, with capacity for more rows."""
    larger = empty_schedules(num_rows)
    for new, old in zip(larger, schedules, strict=True):
        new[: len(old)] = old
    return larger


def empty_jobs(num_rows: int, num_levels: int) -> Jobs:
    """Capacity for `num_rows` rows."""
    shape = (num_rows, num_levels)
    return Jobs(
        np.empty(shape, np.int64),
        np.empty(shape),
        np.empty(shape),
        np.zeros(num_rows, np.int64),
        np.zeros(num_rows),
        np.zeros(num_rows, np.int64),
        np.full(num_rows, -np.inf),
        np.full(num_rows, np.inf),
        np.empty(shape),
        np.empty(shape),
        np.empty(shape),
        np.zeros(num_rows),
        np.zeros(num_rows),
        np.zeros(num_rows),
        np.zeros(num_rows, np.bool_),
        np.empty(0),
    )


def write_levels(jobs: Jobs, row: int, curve: ScalingCurve, cost: ResizeCost, disturbances: Disturbances) -> None:
    """Store the useful levels of a curve, the resize cost of each, and what failures and moves may cost."""
    levels = curve.derived(_levels, cost, disturbances)
    count = jobs.num_levels_J[row] = len(levels.num_gpus_L)
    jobs.levels_JL[row, :count] = levels.num_gpus_L
    jobs.rates_JL[row, :count] = levels.rates_L
    jobs.costs_JL[row, :count] = levels.costs_L
    jobs.lost_JL[row, :count] = levels.lost_L
    jobs.moved_JL[row, :count] = levels.moved_L
    jobs.migrated_JL[row, :count] = levels.migrated_L


@compiled
def copy_rows(jobs: Jobs, schedules: Schedules, other_jobs: Jobs, other_schedules: Schedules, rows: Integers) -> None:
    """Copy these rows of the other arrays to the first rows, in this order."""
    for new in range(rows.shape[0]):
        old = rows[new]
        levels = jobs.num_levels_J[new] = other_jobs.num_levels_J[old]
        jobs.levels_JL[new, :levels] = other_jobs.levels_JL[old, :levels]
        jobs.rates_JL[new, :levels] = other_jobs.rates_JL[old, :levels]
        jobs.costs_JL[new, :levels] = other_jobs.costs_JL[old, :levels]
        jobs.lost_JL[new, :levels] = other_jobs.lost_JL[old, :levels]
        jobs.moved_JL[new, :levels] = other_jobs.moved_JL[old, :levels]
        jobs.migrated_JL[new, :levels] = other_jobs.migrated_JL[old, :levels]
        jobs.remaining_J[new] = other_jobs.remaining_J[old]
        jobs.held_J[new] = other_jobs.held_J[old]
        jobs.stalled_until_J[new] = other_jobs.stalled_until_J[old]
        jobs.deadline_J[new] = other_jobs.deadline_J[old]
        jobs.since_migration_J[new] = other_jobs.since_migration_J[old]
        jobs.migration_budget_J[new] = other_jobs.migration_budget_J[old]
        jobs.unsaved_J[new] = other_jobs.unsaved_J[old]
        jobs.starts_over_J[new] = other_jobs.starts_over_J[old]
        copy_schedule(schedules, new, other_schedules, old)


class Levels(NamedTuple):
    """The levels of one job: GPUs, iterations/s, seconds of a resize to it, iterations that failures may cost, and
    those that one move or one migration may cost."""

    num_gpus_L: Integers
    rates_L: Floats
    costs_L: Floats
    lost_L: Floats
    moved_L: Floats
    migrated_L: Floats


def _levels(curve: ScalingCurve, cost: ResizeCost, disturbances: Disturbances) -> Levels:
    """Each failure costs one stop; the worst case is the level with the longest stop among those up to each level."""
    rates_L = np.array([curve.rate_by_num_gpus[level] for level in curve.levels])
    costs_L = np.array([cost.seconds(level) for level in curve.levels])
    migration_costs_L = np.array([disturbances.migration_cost.seconds(level) for level in curve.levels])
    lost_L = disturbances.reserve_nodes * np.maximum.accumulate(rates_L * (costs_L + disturbances.notice_s))
    moved_L, migrated_L = np.maximum.accumulate(rates_L * costs_L), np.maximum.accumulate(rates_L * migration_costs_L)
    return Levels(np.array(curve.levels, np.int64), rates_L, costs_L, lost_L, moved_L, migrated_L)


def write_schedules(schedules: Schedules, rows: Sequence[int], flat: Sequence[Sequence[float]]) -> None:
    """Store start_s, end_s, num_gpus of each segment for each of these rows; a schedule with too many segments is
    stored as empty."""
    stored = [numbers if len(numbers) <= 3 * MAX_SEGMENTS else () for numbers in flat]
    counts = np.array([len(numbers) // 3 for numbers in stored], np.int64)
    row_S = np.repeat(np.array(rows, np.int64), counts)
    segment_S = np.arange(len(row_S)) - np.repeat(np.cumsum(counts) - counts, counts)
    numbers = np.fromiter(chain.from_iterable(stored), np.float64)
    schedules.count_J[rows] = counts
    schedules.start_JM[row_S, segment_S] = numbers[0::3]
    schedules.end_JM[row_S, segment_S] = numbers[1::3]
    schedules.num_gpus_JM[row_S, segment_S] = numbers[2::3]
