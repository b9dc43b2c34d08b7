"""Promising one deadline after another, on the plan that the ones before left.

Two named policies (`PoolConfig.admission`): `first-come` refuses only what cannot be kept beside earlier promises,
`selective` also what would crowd out more than it is worth.
Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling).
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

from shared.messages.cluster import ShareSchedule
from shared.messages.pool_state import HeldQuote, PoolState
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.insistence import MANY_FILLINGS, Insistence
from shared.scheduling.job_table import SchedulableJob
from shared.scheduling.planned_pool import PlannedPool, flat, planned_pool
from shared.scheduling.proposal import Proposal
from shared.scheduling.quoting import earliest_deadline_around_s
from shared.scheduling.selection import Selection, least_gpu_seconds

MAX_THOROUGH_REFUSALS = (
    1  # of one decision: a thorough one costs as much as ten wishes, which all wait for it
)
MAX_EFFORTS = 16  # of one decision: with more wishes than that, or after as many refusals, less is tried
FEW_FILLINGS = 256


_Found = TypeVar("_Found")


class Promises:
    """The promises of a pool during one decision."""

    def __init__(self, state: PoolState, now_s: float) -> None:
        self.now_s = now_s
        self.num_refusals = 0
        self._coming: list[float] = []
        self._selection: Selection | None = None
        self.look_again(state)

    def look_again(self, state: PoolState) -> None:
        """Something other than a promise has changed the pool: plan anew."""
        self.state = state
        self._pool: PlannedPool | None = None
        self._forget_room()
        self._is_told = False

    def _forget_room(self) -> None:
        """The plan is another now."""
        self._room: Insistence | None = None
        self._refused: list[SchedulableJob] = []  # beside this plan

    def expect(self, asked: Iterable[float]) -> None:
        """The GPU-seconds of the wishes at hand, which all count as demand from now on; of one with inf only that it
        is there."""
        self._coming = list(asked)
        self._selection = None

    def expect_another(self) -> None:
        """Who takes an offer or a quote asks once more; what is priced then must be priced now."""
        if self._is_selective and not self._selected.knows_enough:
            self.expect([*self._coming, math.inf])

    @property
    def plan(self) -> AdmissionPlan:
        return self._planned.plan

    @property
    def _planned(self) -> PlannedPool:
        if self._pool is None:
            self._pool = planned_pool(self.state, self.now_s)
        return self._pool

    @property
    def held_quotes(self) -> tuple[HeldQuote, ...]:
        """Those that the plan keeps."""
        return self._planned.held

    @property
    def thorough(self) -> bool:
        """Whether the next refusal may take its time."""
        return self.num_refusals < MAX_THOROUGH_REFUSALS

    def propose(self, job: SchedulableJob) -> Proposal | None:
        """A way to keep this promise too; None at once if less was refused already."""
        return self._unless_refused(job, self.room.propose)

    def has_room_for(self, job: SchedulableJob) -> bool:
        """Whether there is one, which is sooner known than what it is."""
        return bool(self._unless_refused(job, self.room.has_room_for))

    def _unless_refused(self, job: SchedulableJob, ask: Callable[[SchedulableJob], _Found]) -> _Found | None:
        if any(asks_no_less(job, refused) for refused in self._refused):
            return None
        found = ask(job)
        if not found:
            self._refused.append(job)
        return found

    @property
    def room(self) -> Insistence:
        """For one more beside this plan: with all effort, unless many wait for this decision."""
        if self._room is None:
            is_rush = len(self._coming) > MAX_EFFORTS or self.num_refusals >= MAX_EFFORTS
            self._room = Insistence(self.plan, FEW_FILLINGS if is_rush else MANY_FILLINGS)
        return self._room

    def accept(self, proposal: Proposal) -> dict[str, ShareSchedule]:
        """It was promised: the schedules of others that are not those of the ledger any more."""
        plan, replanned = self.plan, self.news()
        for row, schedule in proposal.moved.items():
            replanned[plan.table.job_ids[row]] = flat(schedule)
        plan.accept(proposal)
        self._forget_room()
        return replanned

    def news(self) -> dict[str, ShareSchedule]:
        """The schedules with which the plan began that are not those of the ledger; said once."""
        replanned = {} if self._is_told else self._planned.changed_schedules()
        self._is_told = True
        return replanned

    def promised(self) -> list[SchedulableJob]:
        """The promised jobs, one by one."""
        plan, curves = self.plan, self._planned.curves
        jobs, found = plan.table.jobs, list[SchedulableJob]()
        for row in map(int, plan.promised):
            newly = plan.accepted.get(row)
            found.append(
                SchedulableJob(
                    job_id=plan.table.job_ids[row],
                    curve=newly.curve if newly else curves[row],
                    remaining_iterations=float(jobs.remaining_J[row]),
                    deadline_s=float(jobs.deadline_J[row]),
                    current_num_gpus=int(jobs.held_J[row]),
                    stalled_until_s=float(jobs.stalled_until_J[row]),
                )
            )
        return found

    # -- from when on ------------------------------------------------------------------------------------

    def earliest_deadline_s(self, job: SchedulableJob, *, tight: bool = True) -> float | None:
        """The earliest that would be promised now, in whole seconds of planned time.

        tight: one second less is refused. Otherwise the earliest that moves no other job: a little later at most
        times and much cheaper, for when many wishes come at once.
        """
        earliest_s = (
            self.room.earliest_deadline_s(job) if tight else earliest_deadline_around_s(self.plan, job)
        )
        return None if earliest_s is None else self.first_worth_s(job, earliest_s, 1.0 if tight else math.inf)

    # -- at what price -----------------------------------------------------------------------------------

    def least_gpu_seconds(self, job: SchedulableJob) -> float:
        """To keep the deadline on an empty cluster, staying at one number of GPUs; inf if none is fast enough."""
        return least_gpu_seconds(job, self.now_s)

    def dearest_gpu_seconds(self, job: SchedulableJob) -> float:
        """The most for which a job with such a window is taken."""
        return self._selected.dearest_gpu_seconds(job.deadline_s - self.now_s)

    def is_too_dear(self, job: SchedulableJob) -> bool:
        """Whether selective admission keeps the GPUs for others."""
        return self._is_selective and self._selected.is_too_dear(job, self.plan.profile)

    def first_worth_s(self, job: SchedulableJob, from_s: float, within_s: float) -> float | None:
        """The first deadline from this one on at which the job is not too dear, to so many seconds."""
        if not self._is_selective:
            return from_s
        return self._selected.first_worth_s(job, from_s, within_s, self.plan.profile)

    @property
    def _is_selective(self) -> bool:
        return self.state.config.admission == "selective"

    @property
    def _selected(self) -> Selection:
        if self._selection is None:
            self._selection = Selection(self.state.demand, self._coming, self.now_s, self.plan.num_gpus)
        return self._selection


def asks_no_less(job: SchedulableJob, other: SchedulableJob) -> bool:
    """Whether `job` takes as long as `other` on any number of GPUs, and is due no later."""
    return job.deadline_s <= other.deadline_s and all(
        job.remaining_iterations * other.curve.throughput(level)
        >= other.remaining_iterations * job.curve.throughput(level)
        for level in job.curve.levels
    )
