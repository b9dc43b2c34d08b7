"""Admission: the promises already made, and whether one more can be kept beside them.

A plan holds one schedule for each promised job; together they certify that every promise can be kept. How one job
is filled into free GPUs lives in `filling`, how many are in `planning`; who gets what stays free, in `allocation`.
Axes: J = rows of the table; K = promised jobs by earliest deadline.
Source: ElasticFlow, Algorithm 1; in continuous time, with every resize charged.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.compiled import Integers
from shared.scheduling.filling import fill, minimum_share, most_iterations
from shared.scheduling.job_table import JobTable, SchedulableJob, Schedule, end_s, schedule_of
from shared.scheduling.planning import fill_anew, forget_past, hold_all, new_workspace, overloaded, write
from shared.scheduling.profile import (
    MAX_SEGMENTS,
    Profile,
    Schedules,
    copied,
    copy_into,
    empty_profile,
    empty_schedules,
    free_gpu_seconds,
    reserve,
    sweep,
)

TRIES = 4  # orders of filling before a job counts as not fitting
_NOTHING_KEPT: Mapping[str, Schedule] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """How one more job could be promised: the schedules that change, its own last, and what stays free."""

    job: SchedulableJob
    schedules: Mapping[int, Schedule]  # by row
    profile: Profile

    @property
    def schedule(self) -> Schedule:
        return list(self.schedules.values())[-1]


class AdmissionPlan:
    """A schedule for each promised job, jointly possible on `num_gpus` GPUs from `now_s` on.

    late: rows whose promise can no longer be kept (their nodes are gone, say); they end as early as they can
    without making another late, and a job that needs more GPUs than are left has an empty schedule.
    reserved: rows that are no job yet (held quotes): their schedules stand, and all others are planned around them.
    """

    def __init__(
        self,
        table: JobTable,
        promised: Iterable[int],
        num_gpus: int,
        now_s: float,
        reserved: Iterable[int] = (),
    ) -> None:
        """Keep the schedules in the table where they still hold, and fill the other jobs anew, without lateness if
        that can be had. Greedy filling can miss a way that was there a moment ago: what holds is not touched."""
        self.table, self.num_gpus, self.now_s = table, num_gpus, now_s
        rows = np.fromiter(promised, np.int64)
        self._reserved = np.fromiter(reserved, np.int64)
        scheduled = np.concatenate((rows, self._reserved))
        num_pieces = 16 * len(rows) + 16 * MAX_SEGMENTS + 2 * int(table.schedules.count_J[scheduled].sum())
        self.profile = empty_profile(num_pieces)
        self.workspace, self._other_profile = new_workspace(num_pieces), empty_profile(num_pieces)
        self._filled = empty_schedules(len(table.schedules.count_J))
        self._order = table.earliest_deadline_first(rows)
        self.late: tuple[int, ...] = ()
        self.accepted: dict[int, SchedulableJob] = {}  # by row, since the plan was made
        self._recorded = empty_schedules(0)
        self._settle()

    @staticmethod
    def build(
        jobs: Iterable[SchedulableJob],
        num_gpus: int,
        now_s: float,
        kept: Mapping[str, Schedule] = _NOTHING_KEPT,
    ) -> "AdmissionPlan":
        """The plan of these promised jobs. kept: the schedules under which they ran until now."""
        table = JobTable.of(jobs)
        for row, job_id in enumerate(table.job_ids):
            table.write_schedule(row, [number for segment in kept.get(job_id, ()) for number in segment])
        return AdmissionPlan(table, range(table.num_jobs), num_gpus, now_s)

    @property
    def promised(self) -> Integers:
        """The rows of all promised jobs, the late ones last."""
        return np.concatenate((self._order, np.array(self.late, np.int64)))

    @property
    def overcommitted(self) -> bool:
        """More is reserved than there is."""
        return int(self.profile.free_B[: self.profile.size[0]].min()) < 0

    @property
    def schedules(self) -> dict[str, Schedule]:
        """All schedules, by job."""
        return {self.table.job_ids[row]: self.table.schedule(row) for row in self.promised}

    @property
    def late_jobs(self) -> tuple[str, ...]:
        return tuple(self.table.job_ids[row] for row in self.late)

    def propose(self, job: SchedulableJob, *, tries: int = TRIES) -> Proposal | None:
        """A way to promise `job` too that makes no other job late, or None. Good until the plan changes."""
        row = self._append(job)
        try:
            return self._around(row, job) or self._making_room(row, job, tries)
        finally:
            self.table.pop()

    def accept(self, proposal: Proposal) -> None:
        """Promise it."""
        row = self._append(proposal.job)
        for changed, schedule in proposal.schedules.items():
            self.table.write_schedule(changed, [number for segment in schedule for number in segment])
        self.profile = proposal.profile
        if len(self.profile.start_B) < self.profile.size[0] + 8 * MAX_SEGMENTS:
            self._make_space()
        self._order = np.insert(self._order, self._position(row), row)
        self.accepted[row] = proposal.job

    def admit(self, job: SchedulableJob) -> bool:
        """Promise `job` too, if no other job becomes late by it."""
        proposal = self.propose(job)
        if proposal is not None:
            self.accept(proposal)
        return proposal is not None

    def fits_around(self, job: SchedulableJob) -> bool:
        """Whether it could be promised without moving any other."""
        row = self._append(job)
        try:
            work, jobs = self.workspace, self.table.jobs
            found = minimum_share(
                self.profile, jobs, row, job.deadline_s, work.found, work.other, work.memory
            )
            return found >= 0
        finally:
            self.table.pop()

    def most_iterations(self, job: SchedulableJob) -> int:
        """As many iterations as would be promised by the deadline without moving any other; 0 if not one."""
        row = self._append(job)
        try:
            work = self.workspace
            return most_iterations(
                self.profile, self.table.jobs, row, job.deadline_s, work.found, work.memory
            )
        finally:
            self.table.pop()

    def changed_rows(self) -> list[int]:
        """Promised rows whose schedule is not the one that was kept."""
        rows = self.promised
        rows = rows[rows < len(self._recorded.count_J)]
        return [int(row) for row in rows[_differ(self.table.schedules, self._recorded, rows)]]

    def earliest_deadline_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline, in whole seconds, that `propose` accepts now; None if it accepts none.

        What is returned is accepted and one second less is refused. Where acceptance is not monotone in the deadline
        (greedy filling of several jobs does not rule that out) an even earlier one may exist.
        """
        accepted_s = self.earliest_deadline_around_s(job)
        alone_s = self._fastest_s(job, alone=True)
        if accepted_s is None or alone_s is None:
            return None
        refused_s = math.ceil(alone_s) - 1.0
        accepted_s, _ = self._narrowed(job, refused_s, accepted_s, tries=1)
        step_s = 1.0  # then with all tries: from there on down, as long as it helps
        while accepted_s - step_s > refused_s:
            if self.propose(replace(job, deadline_s=accepted_s - step_s)) is None:
                return self._narrowed(job, accepted_s - step_s, accepted_s, tries=TRIES)[0]
            accepted_s, step_s = accepted_s - step_s, 2 * step_s
        return self._narrowed(job, refused_s, accepted_s, tries=TRIES)[0]

    def _narrowed(
        self, job: SchedulableJob, refused_s: float, accepted_s: float, tries: int
    ) -> tuple[float, float]:
        """Bisect between an accepted and a refused deadline, to one second."""
        while accepted_s - refused_s > 1.0:
            middle_s = float((accepted_s + refused_s) // 2)
            if self.propose(replace(job, deadline_s=middle_s), tries=tries) is None:
                refused_s = middle_s
            else:
                accepted_s = middle_s
        return accepted_s, refused_s

    def earliest_deadline_around_s(self, job: SchedulableJob) -> float | None:
        """The earliest deadline, in whole seconds, that moves no other job: cheap, and never too early."""
        fastest_s = self._fastest_s(job, alone=False)
        return None if fastest_s is None else float(math.ceil(fastest_s))

    def earliest_end_from_s(self, job: SchedulableJob, start_s: float) -> float | None:
        """When a job would end that is to hold nothing before an instant and moves no other; None if never."""
        schedule = self._schedule_from(replace(job, deadline_s=math.inf), start_s, fastest=True)
        return None if schedule is None else end_s(schedule)

    def schedule_from(self, job: SchedulableJob, start_s: float) -> Schedule | None:
        """Its minimum share on time if it is to hold nothing before an instant and moves no other."""
        return self._schedule_from(job, start_s, fastest=False)

    def keeps(self, job: SchedulableJob, schedule: Schedule) -> bool:
        """Whether the job would end on time under a schedule."""
        row = self._append(job)
        try:
            self.table.write_schedule(row, [number for segment in schedule for number in segment])
            only = np.array([row], np.int64)
            return not len(hold_all(self.table.schedules, self.table.jobs, only, self.now_s))
        finally:
            self.table.pop()

    def utilization(self, until_s: float) -> float:
        """The part of all GPU-seconds until an instant that is promised."""
        total = self.num_gpus * (until_s - self.now_s)
        return 1.0 - free_gpu_seconds(self.profile, until_s) / total if total > 0 else 1.0

    def _schedule_from(self, job: SchedulableJob, start_s: float, *, fastest: bool) -> Schedule | None:
        row = self._append(job)
        try:
            jobs, work, later = self.table.jobs, self.workspace, self._other_profile
            sweep(later, self.table.schedules, self._scheduled(self.promised), start_s, self.num_gpus)
            if fastest:
                cap = int(jobs.num_levels_J[row]) - 1
                count = fill(later, jobs, row, cap, job.deadline_s, work.found, work.memory)
            else:
                count = minimum_share(later, jobs, row, job.deadline_s, work.found, work.other, work.memory)
            if count < 0:
                return None
            write(self._filled, row, work.found, count)
            return schedule_of(self._filled, row)
        finally:
            self.table.pop()

    def _scheduled(self, rows: Integers) -> Integers:
        """These, and what is reserved."""
        return np.concatenate((rows, self._reserved))

    def _fastest_s(self, job: SchedulableJob, *, alone: bool) -> float | None:
        row = self._append(replace(job, deadline_s=math.inf))
        try:
            profile = self.profile
            if alone:
                profile = self._other_profile
                sweep(profile, self.table.schedules, np.empty(0, np.int64), self.now_s, self.num_gpus)
            cap = int(self.table.jobs.num_levels_J[row]) - 1
            work = self.workspace
            count = fill(profile, self.table.jobs, row, cap, math.inf, work.found, work.memory)
            return None if count < 0 else (float(work.found.end_M[count - 1]) if count else self.now_s)
        finally:
            self.table.pop()

    def _around(self, row: int, job: SchedulableJob) -> Proposal | None:
        """Without moving anybody."""
        work, jobs = self.workspace, self.table.jobs
        count = minimum_share(self.profile, jobs, row, job.deadline_s, work.found, work.other, work.memory)
        if count < 0:
            return None
        profile = empty_profile(len(self.profile.start_B))
        copy_into(profile, self.profile)
        write(self._filled, row, work.found, count)
        reserve(profile, self._filled, row)
        return Proposal(job=job, schedules={row: schedule_of(self._filled, row)}, profile=profile)

    def _making_room(self, row: int, job: SchedulableJob, tries: int) -> Proposal | None:
        """Fill all jobs anew, the newcomer among them."""
        position = self._position(row)
        order = np.insert(self._order, position, row)
        jobs = self.table.jobs
        if overloaded(jobs, order, position, self.now_s, self.num_gpus):
            return None
        by_deadline = order.copy()
        num_kept = self._fill_anew(order, position)  # those with earlier deadlines stay as they are
        if num_kept < 0 and tries > 1:
            num_kept = self._fill_anew(order, 0, tries=tries - 1)
        if num_kept < 0 and tries > 1:
            num_kept = self._fill_anew(order := by_deadline, position, hurried=row)
        if num_kept < 0:
            return None
        profile = empty_profile(len(self.profile.start_B))
        copy_into(profile, self._other_profile)
        others = order[num_kept:][order[num_kept:] != row]
        moved = others[_differ(self.table.schedules, self._filled, others)]
        changed = {int(other): schedule_of(self._filled, other) for other in moved}
        changed[row] = schedule_of(self._filled, row)
        return Proposal(job=job, schedules=changed, profile=profile)

    def _fill_anew(self, order: Integers, num_kept: int, *, hurried: int = -1, tries: int = 1) -> int:
        return fill_anew(
            self._other_profile,
            self.table.schedules,
            self._filled,
            self.table.jobs,
            self._scheduled(np.array(self.late, np.int64)),
            order,
            num_kept,
            hurried,
            tries,
            self.now_s,
            self.num_gpus,
            self.workspace,
        )

    def _settle(self) -> None:
        """Schedules for all: those that hold, those that can be found, and the late."""
        table, order = self.table, self._order
        forget_past(table.schedules, order, self.now_s)
        self._recorded = copied(table.schedules)
        broken = hold_all(table.schedules, table.jobs, order, self.now_s)
        held = np.delete(order, broken)
        if sweep(self.profile, table.schedules, self._scheduled(held), self.now_s, self.num_gpus) >= 0:
            late = self._fill_in(order[broken])
            if not late:
                return
        if self._fill_anew(fresh := order.copy(), 0, tries=TRIES) >= 0:
            for row in fresh:
                self._take(int(row))
            copy_into(self.profile, self._other_profile)
            return
        self._keep_what_fits(held, order)

    def _keep_what_fits(self, held: Integers, order: Integers) -> None:
        """Keep held schedules that fit together, earliest deadline first; fill in the others; then the late ones."""
        table = self.table
        sweep(self.profile, table.schedules, self._reserved, self.now_s, self.num_gpus)
        kept = list[int]()
        for row in held:
            reserve(self.profile, table.schedules, row)
            if self.profile.free_B[: self.profile.size[0]].min() < 0:
                fitting = self._scheduled(np.array(kept, np.int64))
                sweep(self.profile, table.schedules, fitting, self.now_s, self.num_gpus)
            else:
                kept.append(int(row))
        without = set(kept)
        late = self._fill_in(np.array([row for row in order if int(row) not in without], np.int64))
        self._order = np.array([row for row in order if int(row) not in set(late)], np.int64)
        self.late = tuple(late)
        work = self.workspace
        for row in late:
            cap = int(table.jobs.num_levels_J[row]) - 1
            count = fill(self.profile, table.jobs, row, cap, math.inf, work.found, work.memory)
            write(table.schedules, row, work.found, max(count, 0))
            reserve(self.profile, table.schedules, row)

    def _fill_in(self, rows: Integers) -> list[int]:
        """Fill these around all others, one after another: those that find no room on time."""
        table, work, failed = self.table, self.workspace, list[int]()
        for row in map(int, rows):
            count = minimum_share(
                self.profile,
                table.jobs,
                row,
                float(table.jobs.deadline_J[row]),
                work.found,
                work.other,
                work.memory,
            )
            if count < 0:
                failed.append(row)
            else:
                write(table.schedules, row, work.found, count)
                reserve(self.profile, table.schedules, row)
        return failed

    def _take(self, row: int) -> None:
        for mine, found in zip(self.table.schedules, self._filled, strict=True):
            mine[row] = found[row]

    def _append(self, job: SchedulableJob) -> int:
        row = self.table.append(job)
        if len(self._filled.count_J) < len(self.table.schedules.count_J):
            self._filled = empty_schedules(len(self.table.schedules.count_J))
        return row

    def _position(self, row: int) -> int:
        """Where a job stands by its deadline, after those with the same."""
        deadlines = self.table.jobs.deadline_J
        return int((deadlines[self._order] <= deadlines[row]).sum())

    def _make_space(self) -> None:
        """Room for twice as many pieces."""
        num_pieces = 2 * len(self.profile.start_B)
        larger = empty_profile(num_pieces)
        copy_into(larger, self.profile)
        self.profile, self._other_profile = larger, empty_profile(num_pieces)
        self.workspace = new_workspace(num_pieces)


def _differ(mine: Schedules, other: Schedules, rows: Integers) -> NDArray[np.bool_]:
    """Which of these rows have another schedule in one than in the other."""
    most = int(max(mine.count_J[rows].max(initial=0), other.count_J[rows].max(initial=0)))
    differ: NDArray[np.bool_] = mine.count_J[rows] != other.count_J[rows]
    within = np.arange(most) < mine.count_J[rows][:, None]
    for one, another in zip(mine[:3], other[:3], strict=True):
        differ |= ((one[rows, :most] != another[rows, :most]) & within).any(axis=1)
    return differ
