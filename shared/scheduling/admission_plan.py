"""Admission: the promises already made, and what of them changes with one more.

A plan holds one schedule for each promised job; together they certify that every promise can be kept. How one job
is filled into free GPUs lives in `filling`, how many are in `planning` and `keeping`; how room is made for one more,
in `room`, `greedy` and `insistence`; who gets what stays free, in `allocation`.
Axes: J = rows of the table; K = promised jobs by earliest deadline.
Source: ElasticFlow, Algorithm 1; in continuous time, with every resize charged.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np

from shared.scheduling.compiled import Flags, Floats, Integers
from shared.scheduling.hastening import late_first
from shared.scheduling.job_table import JobTable, SchedulableJob, Schedule
from shared.scheduling.keeping import settle
from shared.scheduling.planning import (
    fill_anew,
    fill_in,
    fill_soonest,
    put,
    take,
    unlike,
)
from shared.scheduling.profile import (
    MAX_SEGMENTS,
    copy_into,
    empty_profile,
    empty_schedules,
    reserve,
    sweep,
)
from shared.scheduling.proposal import Proposal
from shared.scheduling.workspace import Workspace, workspace

TRIES = 4  # orders of filling before some count as late
_NOTHING_KEPT: Mapping[str, Schedule] = MappingProxyType({})


class AdmissionPlan:
    """A schedule for each promised job, jointly possible on `num_gpus` GPUs from `now_s` on.

    promised: its rows; of two with the same deadline the first comes first.
    late: rows whose promise can no longer be kept (their nodes are gone, say); they end as early as they can
    without making another late, and a job that needs more GPUs than are left has an empty schedule.
    reserved: rows that are no job yet (held quotes): their schedules stand, and all others are planned around them.
    order: the promised rows that are not late, by earliest deadline.
    changed: by row, whether its schedule is another than the one that was kept.
    """

    def __init__(
        self,
        table: JobTable,
        promised: Sequence[int] | Integers,
        num_gpus: int,
        now_s: float,
        reserved: Sequence[int] = (),
    ) -> None:
        """Keep the schedules in the table where they still hold, and fill the other jobs anew, without lateness if
        that can be had. Greedy filling can miss a way that was there a moment ago: what holds is not touched."""
        self.table, self.num_gpus, self.now_s = table, num_gpus, now_s
        rows: Integers = np.asarray(promised, np.int64)
        self._reserved: Integers = np.asarray(reserved, np.int64)
        num_segments = int(table.schedules.count_J[: table.num_jobs].sum())
        num_pieces = 16 * len(rows) + 16 * MAX_SEGMENTS + 2 * num_segments
        self.profile, self.other_profile = empty_profile(num_pieces), empty_profile(num_pieces)
        self.filled = empty_schedules(len(table.schedules.count_J))
        self.order: Integers = rows[np.argsort(table.jobs.deadline_J[rows], kind="stable")]
        self.late: tuple[int, ...] = ()
        self.accepted: dict[int, SchedulableJob] = {}  # by row, since the plan was made
        self.changed: Flags = np.zeros(len(table.schedules.count_J), np.bool_)
        self._settle()

    @staticmethod
    def build(
        jobs: Iterable[SchedulableJob],
        num_gpus: int,
        now_s: float,
        kept: Mapping[str, Schedule] = _NOTHING_KEPT,
    ) -> "AdmissionPlan":
        """The plan of these promised jobs. kept: the schedules under which they ran until now."""
        table = JobTable.of(sorted(jobs, key=lambda job: job.job_id))
        for row, job_id in enumerate(table.job_ids):
            table.write_schedule(row, [number for segment in kept.get(job_id, ()) for number in segment])
        return AdmissionPlan(table, range(table.num_jobs), num_gpus, now_s)

    @property
    def workspace(self) -> Workspace:
        """Memory for loops over this plan's profile."""
        return workspace(len(self.profile.start_B))

    @property
    def promised(self) -> Integers:
        """The rows of all promised jobs, the late ones last."""
        return np.concatenate((self.order, np.array(self.late, np.int64)))

    @property
    def scheduled(self) -> Integers:
        """These, and what is reserved."""
        return np.concatenate((self.promised, self._reserved))

    @property
    def settled(self) -> Integers:
        """Those that are never filled anew to make room."""
        return np.concatenate((np.array(self.late, np.int64), self._reserved))

    @property
    def num_needed(self) -> int:
        """GPUs that all these schedules hold at most at any instant."""
        return self.num_gpus - int(self.profile.free_B[: self.profile.size[0]].min())

    @property
    def overcommitted(self) -> bool:
        """More is reserved than there is."""
        return self.num_needed > self.num_gpus

    @property
    def schedules(self) -> dict[str, Schedule]:
        """All schedules, by job."""
        return {self.table.job_ids[row]: self.table.schedule(row) for row in self.promised}

    @property
    def late_jobs(self) -> tuple[str, ...]:
        return tuple(self.table.job_ids[row] for row in self.late)

    def accept(self, proposal: Proposal) -> None:
        """Promise it."""
        row = self._append(proposal.job)
        put(self.table.schedules, proposal.found, proposal.rows)
        self.changed[proposal.rows] = True
        self.profile = proposal.profile
        if len(self.profile.start_B) < self.profile.size[0] + 8 * MAX_SEGMENTS:
            self._make_space()
        self.order = np.insert(self.order, self.position(row), row)
        self.accepted[row] = proposal.job

    @contextmanager
    def trying(self, job: SchedulableJob) -> Generator[int]:
        """A row for a job that asks, gone afterwards."""
        row = self._append(job)
        try:
            yield row
        finally:
            self.table.pop()

    def changed_rows(self) -> list[int]:
        """Promised rows whose schedule is not the one that was kept."""
        rows = self.promised
        changed: list[int] = rows[self.changed[rows]].tolist()
        return changed

    def fill_anew(self, order: Integers, num_kept: int, *, tries: int = 1) -> int:
        """All in an order but those who come first, and what is settled: how many keep what they have, -1 if it fails.
        What is found is in `filled`, what it leaves in `other_profile`."""
        return fill_anew(
            self.other_profile,
            self.table.schedules,
            self.filled,
            self.table.jobs,
            self.settled,
            order,
            num_kept,
            tries,
            self.now_s,
            self.num_gpus,
            self.workspace,
        )

    def _settle(self) -> None:
        """Schedules for all: those that hold, those that can be found, and the late."""
        table, order = self.table, self.order
        broken, fit = settle(
            self.profile,
            table.schedules,
            table.jobs,
            order,
            self._reserved,
            self.changed,
            self.now_s,
            self.num_gpus,
            self.workspace,
        )
        if fit:
            return
        if self.fill_anew(fresh := order.copy(), 0, tries=TRIES) >= 0:
            moved = unlike(table.schedules, self.filled, fresh)
            take(table.schedules, self.filled, moved)
            self.changed[moved] = True
            copy_into(self.profile, self.other_profile)
            return
        self._keep_what_fits(np.delete(order, broken), order)

    def _keep_what_fits(self, held: Integers, order: Integers) -> None:
        """Keep held schedules that fit together, earliest deadline first; fill in the others; then the late ones."""
        table, work = self.table, self.workspace
        sweep(self.profile, table.schedules, self._reserved, self.now_s, self.num_gpus)
        kept = list[int]()
        for row in held:
            reserve(self.profile, table.schedules, row)
            if self.overcommitted:
                fitting = np.concatenate((np.array(kept, np.int64), self._reserved))
                sweep(self.profile, table.schedules, fitting, self.now_s, self.num_gpus)
            else:
                kept.append(int(row))
        others, before = order[~np.isin(order, kept)], empty_schedules(len(table.schedules.count_J))
        take(before, table.schedules, order)
        late = fill_in(self.profile, table.schedules, table.jobs, others, self.changed, work)
        self.order = order[~np.isin(order, late)]
        self.late = tuple(late.tolist())
        fill_soonest(self.profile, table.schedules, table.jobs, late, work)
        self._hasten(late)
        self.changed[unlike(table.schedules, before, order)] = True

    def _hasten(self, late: Integers) -> None:
        """Let the late ones go first, where that is worth moving the others and makes none of them late."""
        table = self.table
        take(self.filled, table.schedules, self._reserved)
        if late_first(
            self.other_profile,
            table.schedules,
            self.filled,
            table.jobs,
            self._reserved,
            late,
            self.order.copy(),
            TRIES,
            self.now_s,
            self.num_gpus,
            self.workspace,
        ):
            take(table.schedules, self.filled, self.promised)
            copy_into(self.profile, self.other_profile)

    def _append(self, job: SchedulableJob) -> int:
        row = self.table.append(job)
        num_rows = len(self.table.schedules.count_J)
        if len(self.filled.count_J) < num_rows:
            self.filled = empty_schedules(num_rows)
            self.changed = np.concatenate((self.changed, np.zeros(num_rows - len(self.changed), np.bool_)))
        return row

    def position(self, row: int) -> int:
        """Where a job stands by its deadline, after those with the same."""
        deadline_J = self.table.jobs.deadline_J
        deadline_K: Floats = deadline_J[self.order]
        return int(deadline_K.searchsorted(float(deadline_J[row]), side="right"))

    def _make_space(self) -> None:
        """Room for twice as many pieces."""
        num_pieces = 2 * len(self.profile.start_B)
        larger = empty_profile(num_pieces)
        copy_into(larger, self.profile)
        self.profile, self.other_profile = larger, empty_profile(num_pieces)
