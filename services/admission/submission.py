"""A submission, and the events that answer it."""

from dataclasses import dataclass, replace

from elasticflow.services.admission.counteroffers import Refusal, Rejection
from elasticflow.services.admission.quota_rules import QuotaRequest, objection
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, ProfileRequested, RejectionReason
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.admission_plan import Proposal
from elasticflow.shared.scheduling.admission.planned_pool import flat
from elasticflow.shared.state.gpu_types import spec_on, submitted_spec
from elasticflow.shared.state.idempotent_replies import waits_for
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


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
