"""The plan of all promises: one schedule for each promised job, and what changes with one more promise.

Together the schedules certify that every promise can be kept. `availability/fill` fills one job into free
GPUs, or many one after another, and `plan_repair` keeps what still holds. `admission_search` inserts one more
job; `allocation` distributes the GPUs that stay free.
Axes: J = rows of the table; K = promised jobs by earliest deadline.
Source: ElasticFlow, Algorithm 1, in continuous time and with every resize charged.
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from elasticflow.shared.messages.gpus import ShareSchedule
from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    PIECES_OF_A_JOB,
    AvailabilityProfile,
    Schedules,
    ScratchArrays,
    ScratchMemory,
    copy_into,
    empty_availability_profile,
    empty_schedules,
    reserve,
    sweep,
)
from elasticflow.shared.scheduling.availability.fill import (
    PlanArrays,
    copy_schedules,
    fill_anew,
    fill_or_report_late,
    fill_to_earliest_end,
    rows_that_differ,
    scatter_schedules,
)
from elasticflow.shared.scheduling.availability.plan_repair import extend_where_possible, late_jobs_first, repair_plan
from elasticflow.shared.scheduling.compiled_loops import Flags, Floats, Integers
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, Schedule, flat_schedules, schedule_of
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.nodes import CapacityDrop, PromisableGpus
from elasticflow.shared.state.pool import NodeState

# --- The changes that one more promise would make to a plan --------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How one more job can be promised: the rows whose schedules change (its own last), and what stays free."""

    job: SchedulableJob
    rows: Integers
    found: Schedules  # of these rows, in their order
    availability: AvailabilityProfile

    @property
    def schedule(self) -> Schedule:
        """The schedule of the new job."""
        return schedule_of(self.found, len(self.rows) - 1)

    def moved(self, job_ids: Sequence[str]) -> dict[str, ShareSchedule]:
        """The changed schedules of other jobs, by job, flat as in events. job_ids: of all rows of the plan."""
        others: list[int] = self.rows[:-1].tolist()
        schedules = flat_schedules(self.found, range(len(others)))
        return {job_ids[row]: schedule for row, schedule in zip(others, schedules, strict=True)}


# --- admission plan ------------------------------------------------------------------------------------


class PlanCopy(NamedTuple):
    schedules: Schedules
    availability: AvailabilityProfile
    changed: Flags


REPAIR_FILLINGS = 1_024  # before jobs count as late
_NOTHING_KEPT: Mapping[str, Schedule] = MappingProxyType({})
_NOBODY = SchedulableJob(job_id="", curve=ScalingCurve((1,), (1.0,)), remaining_iterations=0.0)


def row_without_job(table: JobTable, start_s: float, end_s: float, num_gpus: int) -> int:
    """A row that holds so many GPUs between two instants, and that no job has."""
    row = table.append(_NOBODY)
    table.write_schedule(row, (start_s, end_s, num_gpus))
    return row


class AdmissionPlan:
    """A schedule for each promised job; all of them fit together on these GPUs from `now_s` on.

    promised: the rows of promised jobs; equal deadlines keep the order of the rows.
    late: rows whose promise can no longer be kept, for instance after node losses. They end as early as possible
    without making another job late; a job that needs more GPUs than are left has an empty schedule.
    reserved: rows of quote reservations and of profiling loans: their schedules are fixed, and all other jobs are
    planned around them.
    drops: GPUs that leave later, so that fewer than `num_gpus` are there.
    gone: the rows that hold the GPUs of the drops forever.
    order: the promised rows that are not late, by earliest deadline.
    gangs: the GPUs of a replica, by row with several. nodes: of the pool; None: all GPUs are on one.
    changed: for each row, whether its schedule differs from the recorded one.
    num_fillings: what searches beside it have cost so far.
    """

    def __init__(
        self,
        table: JobTable,
        promised: Sequence[int] | Integers,
        gpus: PromisableGpus,
        now_s: float,
        reserved: Sequence[int] = (),
        scratch: ScratchMemory | None = None,
    ) -> None:
        """Keep the recorded schedules that still hold and fill the other jobs again, without lateness if possible.

        Greedy filling can miss a solution that the recorded schedules contain; schedules that hold are therefore not
        touched.
        """
        self.table, self.now_s = table, now_s
        self.num_gpus, self.drops = gpus
        rows: Integers = np.asarray(promised, np.int64)
        # what nodes take with them is held by rows that no job has
        self.gone: Integers = np.array(
            [row_without_job(table, drop.at_s, math.inf, drop.num_gpus) for drop in self.drops], np.int64
        )
        self._reserved: Integers = np.concatenate((np.asarray(reserved, np.int64), self.gone))
        num_segments = int(table.schedules.count_J[: table.num_jobs].sum())
        num_pieces = PIECES_OF_A_JOB * len(rows) + 16 * MAX_SEGMENTS + 2 * num_segments
        self.availability = empty_availability_profile(num_pieces)
        self.scratch_availability = empty_availability_profile(num_pieces)
        self._scratch = ScratchMemory() if scratch is None else scratch
        self.filled = empty_schedules(len(table.schedules.count_J))
        self.order: Integers = rows[np.argsort(table.jobs.deadline_J[rows], kind="stable")]
        self.late: tuple[int, ...] = ()
        self.accepted: dict[int, SchedulableJob] = {}  # by row, since the plan was made
        self.gangs: dict[int, int] = {}
        self.nodes: Mapping[str, NodeState] | None = None
        self.num_fillings = 0  # so far, in `fill_anew`
        self.changed: Flags = np.zeros(len(table.schedules.count_J), np.bool_)
        self._repair()

    @staticmethod
    def build(
        jobs: Iterable[SchedulableJob],
        num_gpus: int,
        now_s: float,
        kept: Mapping[str, Schedule] = _NOTHING_KEPT,
        *,
        drops: Sequence[CapacityDrop] = (),
        moves_s: Sequence[float] = (),
    ) -> "AdmissionPlan":
        """Return the plan of these promised jobs. kept: the schedules under which they ran until now."""
        table = JobTable.of(sorted(jobs, key=lambda job: job.job_id))
        for row, job_id in enumerate(table.job_ids):
            table.write_schedule(row, [number for segment in kept.get(job_id, ()) for number in segment])
        table.set_moves(moves_s)
        return AdmissionPlan(table, range(table.num_jobs), PromisableGpus(num_gpus, tuple(drops)), now_s)

    @property
    def scratch_arrays(self) -> ScratchArrays:
        """Scratch memory for loops over the availability profile of this plan."""
        return self._scratch.arrays(len(self.availability.start_B))

    @property
    def arrays(self) -> PlanArrays:
        """This plan, for compiled loops; valid until the next row or the next promise is added."""
        table, work = self.table, self.scratch_arrays
        return PlanArrays(self.availability, table.schedules, self.changed, table.jobs, work, self.now_s, self.num_gpus)

    def _trial(self, num_gpus: int) -> PlanArrays:
        """The schedules in `filled`, on the GPUs that the scratch profile has."""
        table, work = self.table, self.scratch_arrays
        return PlanArrays(self.scratch_availability, self.filled, self.changed, table.jobs, work, self.now_s, num_gpus)

    @property
    def promised(self) -> Integers:
        """The rows of all promised jobs, late jobs last."""
        return np.concatenate((self.order, np.array(self.late, np.int64)))

    @property
    def scheduled(self) -> Integers:
        """The rows of all promised jobs and reservations."""
        return np.concatenate((self.promised, self._reserved))

    @property
    def fixed(self) -> Integers:
        """The rows that are never filled again to insert another job: late jobs, reservations and GPUs that leave."""
        return np.concatenate((np.array(self.late, np.int64), self._reserved))

    @property
    def num_needed(self) -> int:
        """The largest number of GPUs that all schedules and nodes that left hold at one instant."""
        return self.num_gpus - int(self.availability.free_B[: self.availability.size[0]].min())

    @property
    def overcommitted(self) -> bool:
        """Whether the schedules hold more GPUs than exist."""
        return self.num_needed > self.num_gpus

    @property
    def schedules(self) -> dict[str, Schedule]:
        """All schedules by job id."""
        return {self.table.job_ids[row]: self.table.schedule(row) for row in self.promised}

    @property
    def late_jobs(self) -> tuple[str, ...]:
        return tuple(self.table.job_ids[row] for row in self.late)

    def accept(self, proposal: Proposal) -> None:
        """Add the proposed promise to the plan."""
        row = self.append(proposal.job)
        scatter_schedules(self.table.schedules, proposal.found, proposal.rows)
        self.changed[proposal.rows] = True
        self.availability = proposal.availability
        self.make_space(8 * MAX_SEGMENTS)
        self.order = np.insert(self.order, self.position(row), row)
        self.accepted[row] = proposal.job
        if proposal.job.gpus_per_replica > 1:
            self.gangs[row] = proposal.job.gpus_per_replica

    @contextmanager
    def with_candidate(self, job: SchedulableJob) -> Generator[int]:
        """Add a row for a candidate job, and remove it at the end of the block."""
        row = self.append(job)
        try:
            yield row
        finally:
            self.table.pop()

    def copied(self) -> PlanCopy:
        """Its schedules and free GPUs as they are now, for `restore`."""
        availability = empty_availability_profile(len(self.availability.start_B))
        copy_into(availability, self.availability)
        start_JM, end_JM, num_gpus_JM, count_J = self.table.schedules
        schedules = Schedules(start_JM.copy(), end_JM.copy(), num_gpus_JM.copy(), count_J.copy())
        return PlanCopy(schedules, availability, self.changed.copy())

    def restore(self, before: PlanCopy) -> None:
        """Undo all changes of schedules since; no row was added."""
        for column, copied in zip(self.table.schedules, before.schedules, strict=True):
            column[...] = copied
        copy_into(self.availability, before.availability)
        self.changed[...] = before.changed

    def changed_rows(self) -> list[int]:
        """The promised rows whose schedule differs from the recorded one."""
        rows = self.promised
        changed: list[int] = rows[self.changed[rows]].tolist()
        return changed

    def fill_anew(self, order: Integers, max_fillings: int, num_gpus: int | None = None) -> bool:
        """Fill all jobs but the fixed rows again, on all GPUs or on `num_gpus` of them, first in this order.

        Returns whether all meet their deadlines. `filled` then holds the schedules, `scratch_availability` the GPUs
        that stay free.
        """
        trial = self._trial(self.num_gpus if num_gpus is None else num_gpus)
        fits, num_fillings = fill_anew(trial, self.table.schedules, self.fixed, order, max_fillings)
        self.num_fillings += num_fillings
        return fits

    def _repair(self) -> None:
        """Compute schedules for all rows: recorded ones that hold, newly filled ones, and those of late jobs.

        If that is impossible with all moves allowed for, a recorded schedule holds without: the end of a node was
        announced after it was made, or the node joined later.
        """
        table, order = self.table, self.order
        has_moves = len(table.jobs.moves_s) > 0
        recorded = empty_schedules(len(table.schedules.count_J) if has_moves else 0)
        if has_moves:
            copy_schedules(recorded, table.schedules, order)
        broken, far_behind, fit = self._repaired(covers_moves=True)
        if fit or self._filled_anew(order):
            return
        if has_moves:
            copy_schedules(table.schedules, recorded, order)
            self.changed[:] = False
            broken, far_behind, fit = self._repaired(covers_moves=False)
            if fit:
                extend_where_possible(self.arrays, order)
                return
        self._fill_behind(self._kept_beside(order, broken, far_behind), order)

    def _repaired(self, *, covers_moves: bool) -> tuple[Integers, Integers, bool]:
        """The positions of recorded schedules that do not hold, of jobs far behind theirs, and whether all fit."""
        return repair_plan(self.arrays, self.order, self._reserved, covers_moves)

    def _filled_anew(self, order: Integers) -> bool:
        """Whether these jobs fit when they are filled again, without the others of the plan."""
        table = self.table
        if not self.fill_anew(fresh := order.copy(), REPAIR_FILLINGS):
            return False
        moved = rows_that_differ(table.schedules, self.filled, fresh)
        copy_schedules(table.schedules, self.filled, moved)
        self.changed[moved] = True
        copy_into(self.availability, self.scratch_availability)
        return True

    def _kept_beside(self, order: Integers, broken: Integers, far_behind: Integers) -> Integers:
        """The rows of jobs that keep their promises, before a job that is far behind its schedule gets any GPU.

        Such a job is slower than its profile: it pays for that itself. All others are filled again if one of them would
        be late otherwise.
        """
        kept, near = self._kept(np.delete(order, broken)), order[np.setdiff1d(broken, far_behind)]
        others = np.delete(order, far_behind)
        late = fill_or_report_late(self.arrays, near)
        if len(late) and len(far_behind) and self._filled_anew(others):
            return others
        return np.concatenate((kept, near[~np.isin(near, late)]))

    def _kept(self, held: Integers) -> Integers:
        """The rows among these whose recorded schedules fit together, earliest deadline first."""
        table = self.table
        sweep(self.availability, table.schedules, self._reserved, self.now_s, self.num_gpus)
        kept = list[int]()
        for row in held:
            reserve(self.availability, table.schedules, row)
            if self.overcommitted:
                fitting = np.concatenate((np.array(kept, np.int64), self._reserved))
                sweep(self.availability, table.schedules, fitting, self.now_s, self.num_gpus)
            else:
                kept.append(int(row))
        return np.array(kept, np.int64)

    def _fill_behind(self, kept: Integers, order: Integers) -> None:
        """Keep these schedules; fill the other jobs around them, then those that are late."""
        schedules = self.table.schedules
        others, before = order[~np.isin(order, kept)], empty_schedules(len(schedules.count_J))
        copy_schedules(before, schedules, order)
        late = fill_or_report_late(self.arrays, others)
        self.order = order[~np.isin(order, late)]
        self.late = tuple(late.tolist())
        fill_to_earliest_end(self.arrays, late)
        self._schedule_late_jobs_first(late)
        self.changed[rows_that_differ(schedules, before, order)] = True

    def _schedule_late_jobs_first(self, late: Integers) -> None:
        """Schedule late jobs first if that gains enough and makes no other job late."""
        table = self.table
        copy_schedules(self.filled, table.schedules, self._reserved)
        trial = self._trial(self.num_gpus)
        if late_jobs_first(trial, table.schedules, self._reserved, late, self.order.copy(), REPAIR_FILLINGS):
            copy_schedules(table.schedules, self.filled, self.promised)
            copy_into(self.availability, self.scratch_availability)

    def append(self, job: SchedulableJob) -> int:
        """Add a row to the table, and to the arrays beside it."""
        row = self.table.append(job)
        num_rows = len(self.table.schedules.count_J)
        if len(self.filled.count_J) < num_rows:
            self.filled = empty_schedules(num_rows)
            self.changed = np.concatenate((self.changed, np.zeros(num_rows - len(self.changed), np.bool_)))
        return row

    def position(self, row: int) -> int:
        """The position of a job by deadline, after jobs with an equal deadline."""
        deadline_J = self.table.jobs.deadline_J
        deadline_K: Floats = deadline_J[self.order]
        return int(deadline_K.searchsorted(float(deadline_J[row]), side="right"))

    def make_space(self, num_more: int) -> None:
        """Let the availability profile have at least so many more pieces."""
        least = int(self.availability.size[0]) + num_more
        if len(self.availability.start_B) >= least:
            return
        num_pieces = max(least, 2 * len(self.availability.start_B))
        larger = empty_availability_profile(num_pieces)
        copy_into(larger, self.availability)
        self.availability, self.scratch_availability = larger, empty_availability_profile(num_pieces)
