"""Replanning one promised job on other terms, beside all other promises.

The existing promise is given up only if the new one can be kept. `amend` and `gpu_limits` say what the job becomes.
"""

import math
from dataclasses import dataclass

from elasticflow.services.admission.quota_rules import QuotaRequest, objection
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.gpus import ShareSchedule
from elasticflow.shared.scheduling.admission.admission_plan import Proposal
from elasticflow.shared.scheduling.admission.admission_search import AdmissionSearch, end_under_s
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, gpu_seconds
from elasticflow.shared.scheduling.jobs.promised_levels import promised_at_s
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    known_curve,
    planned_deadline_s,
    resize_cost_of,
)
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import spec_of

Found = Proposal | Schedule  # a new schedule, or the one that the job has


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanning:
    """The job on its present terms (`before`), the plan of all `others`, and the search beside that plan."""

    session: AdmissionSession
    others: PlannedPool
    job: Job
    before: SchedulableJob
    search: AdmissionSearch

    @staticmethod
    def of(session: AdmissionSession, job: Job) -> "Replanning | None":
        """The replanning of a job; None if it runs on no number of GPUs that the pool has now."""
        session = session.with_plan()
        others = planned_pool(session.state, session.now_s, session.cache, without=job.job_id)
        before = _on_present_terms(session, others, job)
        if before is None:
            return None
        return Replanning(session=session, others=others, job=job, before=before, search=AdmissionSearch(others.plan))

    def found(self, after: SchedulableJob) -> Found | None:
        """What keeps the deadline of the job on its new terms: a new schedule, or the old one where none is found."""
        proposal = self.search.propose(after)
        if proposal is None and self._end_as_held_s(after) <= after.deadline_s:
            return self.held
        return proposal

    def earliest_deadline_s(self, after: SchedulableJob) -> PlannedTime | None:
        """The earliest deadline that can be kept, in whole seconds."""
        found_s, held_s = self.search.earliest_deadline_s(after), self._end_as_held_s(after)
        earliest_s = min(math.inf if found_s is None else found_s, held_s)
        return None if earliest_s == math.inf else PlannedTime(float(math.ceil(earliest_s)))

    def _end_as_held_s(self, after: SchedulableJob) -> float:
        """When the job would end under the schedule that it has; inf if that is not enough."""
        return end_under_s(self.session.plan, after, self.held) if self.held else math.inf

    def objection(self, found: Found) -> str | None:
        """What a quota rule says against the GPU-seconds beyond those that the job has."""
        return objection_to_more(self.session, self.job, self.added_gpu_seconds(found))

    @property
    def held(self) -> Schedule:
        """The schedule that the job has."""
        return self.session.plan.schedules.get(self.job.job_id, ())

    def added_gpu_seconds(self, found: Found) -> float:
        return max(gpu_seconds(own(found)) - gpu_seconds(self.held), 0.0)

    def replanned(self, found: Found) -> dict[str, ShareSchedule]:
        """Schedules of other jobs that the event has to carry."""
        if not isinstance(found, Proposal):
            return self.session.changed_schedules()
        return self.others.changed_schedules() | found.moved(self.others.plan.table.job_ids)


def objection_to_more(session: AdmissionSession, job: Job, added_gpu_seconds: float) -> str | None:
    """What a quota rule says against so many more GPU-seconds for an admitted job."""
    request = QuotaRequest(
        job_id=job.job_id,
        tenant=job.tenant,
        gpu_seconds=added_gpu_seconds,
        num_new_jobs=0,
        at_s=session.now_s,
    )
    return objection(session.pool, request) if added_gpu_seconds else None


def own(found: Found) -> Schedule:
    """The schedule of the job itself."""
    return found.schedule if isinstance(found, Proposal) else found


def _on_present_terms(session: AdmissionSession, others: PlannedPool, job: Job) -> SchedulableJob | None:
    row = next((row for row, listed in enumerate(others.listed) if listed.job_id == job.job_id), None)
    state = session.state
    curve = known_curve(state, spec_of(job), job.speed, session.cache.curves, promised_at_s=promised_at_s(job))
    if row is None or curve is None:
        return None
    jobs = others.plan.table.jobs
    return SchedulableJob(
        job_id=job.job_id,
        curve=curve,
        remaining_iterations=float(jobs.remaining_J[row]),
        deadline_s=planned_deadline_s(state, job.deadline_s),
        current_num_gpus=int(jobs.held_J[row]),
        resize_cost=resize_cost_of(state, spec_of(job)),
        stalled_until_s=float(jobs.stalled_until_J[row]),
        reserve_nodes=state.config.reserve_nodes,
        notice_s=state.config.heartbeat_timeout_s,
        unsaved_iterations=float(jobs.unsaved_J[row]),
        starts_over=bool(jobs.starts_over_J[row]),
        gpus_per_replica=spec_of(job).gpus_per_replica,
    )
