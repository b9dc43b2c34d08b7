"""A submission, and the events that answer it; what the sender of a job of unknown speed learns at once."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticflow.services.admission.counteroffers import Refusal, Rejection
from elasticflow.services.admission.quota_rules import QuotaRequest, objection
from elasticflow.services.admission.session import AdmissionSession, SessionsByType
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.event_summary import gpus_counted
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, ProfileRequested, RejectionReason
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.admission_plan import Proposal
from elasticflow.shared.scheduling.admission.planned_pool import (
    ProfilingLoan,
    flat,
    free_from_s,
    loan_s,
    most_lent,
    planned_pool,
    promises_beside,
)
from elasticflow.shared.scheduling.jobs.scheduler_view import next_level, profile_known
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.profiles import on_first_type
from elasticflow.shared.state.gpu_types import spec_on, submitted_spec, type_name
from elasticflow.shared.state.idempotent_replies import waits_for
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, largest_level, profiling_jobs, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """What is said at once about a job of unknown speed; fields as in `ProfileRequested`."""

    from_s: float | None = None
    num_runs_before: int = 0
    estimate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A submitted job, or one that waited for its profile.

    deadline_s: absolute. profile_only: the user asks for its throughput profile and no more. sender_waits: or else a
    rejection has no counteroffers. measurement: of a job of unknown speed. replaces: the identity of the ended job that
    had its id; "": of none.
    """

    job_id: str
    tenant: str
    spec: JobSpec
    deadline_s: float | None
    profile_only: bool = False
    sender_waits: bool = True
    measurement: MeasurementPlan = MeasurementPlan()
    replaces: str = ""


def submission_of(command: SubmitJob | ProfileJob, now_s: float) -> SubmittedJob:
    return SubmittedJob(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=command.spec,
        deadline_s=command.spec.resolved_deadline_s(now_s),
        profile_only=isinstance(command, ProfileJob),
        sender_waits=not isinstance(command, SubmitJob) or command.sender_waits,
        replaces=command.replaces if isinstance(command, SubmitJob) else "",
    )


def waiting_submission(job: Job) -> SubmittedJob:
    """That of a job that waits for a decision."""
    return SubmittedJob(
        job_id=job.job_id,
        tenant=job.tenant,
        spec=submitted_spec(job),
        deadline_s=job.deadline_s,
        profile_only=job.profile_only,
    )


def on_type(state: PoolState, submission: SubmittedJob, gpu_type: str) -> SubmittedJob:
    """The same submission to the GPUs of this type."""
    return replace(submission, spec=spec_on(state, submission.spec, gpu_type))


def profile_requested(session: AdmissionSession, submission: SubmittedJob) -> AdmissionSession:
    """Its speed is measured before the decision, or it waits for the first node."""
    if (why := objection_to(session, submission, 0.0)) is not None:
        return rejected(session, submission, "quota", why)
    return session.with_event(
        ProfileRequested(
            job_id=submission.job_id,
            tenant=submission.tenant,
            spec=submission.spec,
            deadline_s=submission.deadline_s,
            profile_only=submission.profile_only,
            waits_for=waits_for(session.state),
            measured_from_s=submission.measurement.from_s,
            num_runs_before=submission.measurement.num_runs_before,
            estimate=submission.measurement.estimate,
            replaces=submission.replaces,
            at_s=session.now_s,
        )
    )


def admitted(
    session: AdmissionSession,
    submission: SubmittedJob,
    needed_gpu_seconds: float,
    proposal: Proposal | None = None,
    least_gpu_seconds: float = 0.0,
) -> AdmissionSession:
    """proposal: what keeps the deadline; None: nothing is promised."""
    session, replanned = session.accept(proposal) if proposal else (session, {})
    return session.with_event(
        JobAdmitted(
            job_id=submission.job_id,
            tenant=submission.tenant,
            spec=submission.spec,
            deadline_s=submission.deadline_s,
            minimum_satisfactory_share=flat(proposal.schedule) if proposal else (),
            gpu_seconds=needed_gpu_seconds,
            least_gpu_seconds=least_gpu_seconds,
            replanned=replanned,
            pinned=proposal is not None and session.allows_migrations and not proposal.job.migration_budget,
            replaces=submission.replaces,
            at_s=session.now_s,
        )
    )


def rejected(
    session: AdmissionSession,
    submission: SubmittedJob,
    reason: RejectionReason,
    explanation: str,
    refusal: Refusal | None = None,
    rejection: Rejection | None = None,
) -> AdmissionSession:
    return session.with_event(
        JobRejected(
            job_id=submission.job_id,
            tenant=submission.tenant,
            spec=submission.spec,
            reason=reason,
            explanation=explanation,
            deadline_s=submission.deadline_s,
            earliest_deadline_s=refusal.earliest_deadline_s if refusal else None,
            least_gpu_seconds=refusal.least_gpu_seconds if refusal else 0.0,
            offers=rejection.offers if rejection else (),
            infeasibility_certificate=rejection.infeasibility_certificate if rejection else None,
            replaces=submission.replaces,
            at_s=session.now_s,
        )
    )


def objection_to(session: AdmissionSession, submission: SubmittedJob, needed_gpu_seconds: float) -> str | None:
    """What a quota rule says against it."""
    return objection(session.pool, request_of(session, submission, needed_gpu_seconds))


def request_of(session: AdmissionSession, submission: SubmittedJob, gpu_seconds: float) -> QuotaRequest:
    return QuotaRequest(job_id=submission.job_id, tenant=submission.tenant, gpu_seconds=gpu_seconds, at_s=session.now_s)


# --- jobs of unknown speed ----------------------------------------------------------------------------
# What the sender of a job of unknown speed learns at once: when it is measured, and what related measurements say.

# --- When it is measured -------------------------------------------------------------------------------


def with_measurement_plan(
    sessions: SessionsByType, submission: SubmittedJob, types: list[str]
) -> tuple[SessionsByType, SubmittedJob]:
    """The submission with the first instant at which promises leave or lend GPUs to its profiling run, of all types.

    types: on which it may run. The sessions have their plans afterwards. A sender who does not wait learns nothing.
    """
    if not submission.sender_waits:
        return sessions, submission
    from_s = math.inf
    for gpu_type in types:
        spec = on_type(sessions.state, submission, gpu_type).spec
        session = sessions.ready(gpu_type, submission.spec)
        if not profile_known(session.state, spec):
            session = session.with_plan()
            from_s = min(from_s, _measurable_from_s(session, spec))
            sessions = sessions.with_session(gpu_type, session)
    plan = MeasurementPlan(
        from_s=from_s if from_s < math.inf else None,
        num_runs_before=_num_runs_before(sessions.state, submission.spec),
        estimate=estimate_in_words(sessions.state, on_type(sessions.state, submission, types[0]).spec) if types else "",
    )
    return sessions, replace(submission, measurement=plan)


def _measurable_from_s(session: AdmissionSession, spec: JobSpec) -> float:
    """Now, if the allocator can lend the GPUs now; else when no promise of the plan holds them."""
    state, now_s, num_gpus = session.planned_state, session.now_s, next_level(session.state, spec)
    if not 0 < num_gpus <= state.num_gpus:
        return math.inf
    lent_s = loan_s(state, spec, num_gpus)
    from_s = free_from_s(session.plan, num_gpus, lent_s)
    # the plan of the state lacks the promises of this decision
    may_lend = from_s > now_s and not session.num_accepted and num_gpus <= most_lent(state)
    lends = may_lend and session.cache.last(_can_lend, state, now_s, num_gpus, lent_s, session.cache)
    return now_s if lends else from_s


def _can_lend(state: PoolState, now_s: float, num_gpus: int, lent_s: float, cache: PlanningCache) -> bool:
    whole = planned_pool(state, now_s, cache, loans=())
    loan = ProfilingLoan(num_gpus, now_s + lent_s)
    return promises_beside(whole, state, now_s, cache, loans=(loan,)) is not None


def _num_runs_before(state: PoolState, spec: JobSpec) -> int:
    """Profiles of other jobs that wait for their measurement, or are measured now: one run starts at a time."""
    waiting = (spec_of(job) for job in profiling_jobs(state.live_jobs))
    profiles = {on_first_type(each.measured_key) for each in waiting if not profile_known(state, each)}
    return len(profiles - {on_first_type(spec.measured_key)})


# --- What related measurements say ---------------------------------------------------------------------


class _Related(NamedTuple):
    """The highest speed of a curve of the same model, and the number of GPUs that has it."""

    batch_size: int
    gpu_type: str
    num_gpus: int
    iterations_per_s: float
    is_own: bool  # of the same owner of profiles


def estimate_in_words(state: PoolState, spec: JobSpec) -> str:
    """How long the job takes by the most similar measurement of its model; "" if there is none.

    A step of fewer samples takes no longer, and more samples in a step are computed no slower. So a measurement with
    another batch size bounds the time from both sides.
    """
    related = _most_similar(state, spec)
    if related is None:
        return ""
    ratio = spec.global_batch_size / related.batch_size
    times_s = sorted(spec.own_iterations / related.iterations_per_s * factor for factor in (1.0, ratio))
    on_type = f" of type {type_name(state, related.gpu_type)}" if len(state.gpu_types) > 1 else ""
    measured = (
        f"in batches of {related.batch_size}, this model makes {related.iterations_per_s:.3g} iterations/s on "
        f"{gpus_counted(related.num_gpus)}{on_type}"
    )
    takes = f"about {times_s[0]:.0f} s" if ratio == 1.0 else f"between {times_s[0]:.0f} s and {times_s[1]:.0f} s"
    return f"{measured}, where its {spec.own_iterations} iterations take {takes} by that measurement"


def _most_similar(state: PoolState, spec: JobSpec) -> _Related | None:
    """Of the curves of the model, those of the same GPU type first, then those of the next batch size, then its own."""

    def unlikeness(related: _Related) -> tuple[bool, float, int, str, bool]:
        distance = abs(math.log(related.batch_size / spec.global_batch_size))
        return related.gpu_type != spec.gpu_type, distance, related.batch_size, related.gpu_type, not related.is_own

    prefix, own, found = f"{spec.model_key}/b", f"{spec.profile_owner}/", list[_Related]()
    most = largest_level(state, spec)
    for key, curve in state.curves.items():
        of_model = key.removeprefix(own)
        if not of_model.startswith(prefix):
            continue
        batch, _, gpu_type = of_model.removeprefix(prefix).partition("@")
        usable = {n: rate for n, rate in curve.iterations_per_s.items() if n <= most and spec.gpu_range.allows(n)}
        if batch.isdigit() and int(batch) and any(usable.values()):
            num_gpus = max(usable, key=lambda n: (usable[n], -n))
            found.append(_Related(int(batch), gpu_type, num_gpus, usable[num_gpus], key != of_model))
    return min(found, key=unlikeness, default=None)
