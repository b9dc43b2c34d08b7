"""A promised job that is to be another from now on, planned anew beside all other promises.

The old promise is given up only where that works. What it is to be is said by `amendments` and `bounds`.
"""

import math
from dataclasses import dataclass

from services.admission.promises import Promises
from services.admission.rules import Request, objection
from shared.messages.cluster import ShareSchedule
from shared.messages.job_state import Job
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.insistence import Insistence
from shared.scheduling.job_table import SchedulableJob, Schedule, gpu_seconds
from shared.scheduling.outlook import known_curve, planned_deadline_s, resize_cost
from shared.scheduling.planned_pool import PlannedPool, flat, planned_pool
from shared.scheduling.proposal import Proposal
from shared.scheduling.quoting import end_under_s

Found = Proposal | Schedule  # a new schedule, or the one that it has


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanning:
    """The job as it is `before`, and the plan of all others, which stays, with the room beside it."""

    state: PoolState
    promises: Promises
    others: PlannedPool
    job: Job
    before: SchedulableJob
    room: Insistence
    now_s: float

    @staticmethod
    def of(state: PoolState, promises: Promises, job: Job, now_s: float) -> "Replanning | None":
        """None if the job runs nowhere here now."""
        others = planned_pool(state, now_s, without=job.job_id)
        before = _as_it_is(state, others, job)
        if before is None:
            return None
        room = Insistence(others.plan)
        return Replanning(
            state=state, promises=promises, others=others, job=job, before=before, room=room, now_s=now_s
        )

    def found(self, after: SchedulableJob) -> Found | None:
        """What keeps the deadline of the job as it is to be: a new schedule, or the old one where no other is found."""
        proposal = self.room.propose(after)
        if proposal is None and self._end_as_held_s(after) <= after.deadline_s:
            return self.held
        return proposal

    def earliest_deadline_s(self, after: SchedulableJob) -> float | None:
        """From when on a way is found, in whole seconds."""
        found_s, held_s = self.room.earliest_deadline_s(after), self._end_as_held_s(after)
        earliest_s = min(math.inf if found_s is None else found_s, held_s)
        return None if earliest_s == math.inf else float(math.ceil(earliest_s))

    def _end_as_held_s(self, after: SchedulableJob) -> float:
        """When it would end under the schedule that it has; inf if that is not enough."""
        return end_under_s(self.promises.plan, after, self.held) if self.held else math.inf

    def objection(self, found: Found) -> str | None:
        """What a rule says against what it would hold beyond what it has."""
        more = self.added_gpu_seconds(found)
        request = Request(
            job_id=self.job.job_id,
            tenant=self.job.tenant,
            gpu_seconds=more,
            num_new_jobs=0,
            at_s=self.now_s,
        )
        return objection(self.state, request) if more else None

    @property
    def held(self) -> Schedule:
        """Its schedule before."""
        return self.promises.plan.schedules.get(self.job.job_id, ())

    def added_gpu_seconds(self, found: Found) -> float:
        return max(gpu_seconds(own(found)) - gpu_seconds(self.held), 0.0)

    def replanned(self, found: Found) -> dict[str, ShareSchedule]:
        """Schedules of others that are to be known with it."""
        if not isinstance(found, Proposal):
            return self.promises.news()
        replanned, table = self.others.changed_schedules(), self.others.plan.table
        for row, schedule in found.moved.items():
            replanned[table.job_ids[row]] = flat(schedule)
        return replanned


def own(found: Found) -> Schedule:
    return found.schedule if isinstance(found, Proposal) else found


def _as_it_is(state: PoolState, others: PlannedPool, job: Job) -> SchedulableJob | None:
    """The job under its present promise; None if it runs nowhere here."""
    row = next((row for row, listed in enumerate(others.listed) if listed.job_id == job.job_id), None)
    curve = known_curve(state, spec_of(job), job.speed)
    if row is None or curve is None:
        return None
    jobs = others.plan.table.jobs
    return SchedulableJob(
        job_id=job.job_id,
        curve=curve,
        remaining_iterations=float(jobs.remaining_J[row]),
        deadline_s=planned_deadline_s(state, job.deadline_s),
        current_num_gpus=int(jobs.held_J[row]),
        resize_cost=resize_cost(state),
        stalled_until_s=float(jobs.stalled_until_J[row]),
        reserve_nodes=state.config.reserve_nodes,
        notice_s=state.config.heartbeat_timeout_s,
    )
