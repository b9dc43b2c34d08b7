"""Submissions: a job is promised its deadline, admitted without one, profiled first, or rejected."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elasticflow.services.admission.commands.quote_and_reserve import take, why_not_taken
from elasticflow.services.admission.quota_rules import Request, counts_as_demand, objection
from elasticflow.services.admission.rejection.counteroffers import Rejection, rejection_of
from elasticflow.services.admission.rejection.text import (
    problems_of,
    size_problems,
    too_small,
    why_no_type,
    why_unrunnable,
)
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.events import (
    JobAdmitted,
    JobProfiled,
    JobRejected,
    ProfileRequested,
    RejectionReason,
)
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.scheduling.admission.admission_pricing import Submitted, least_gpu_seconds, submitted
from elasticflow.shared.scheduling.admission.proposal import Proposal
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, gpu_seconds
from elasticflow.shared.scheduling.jobs.planned_pool import flat
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    arriving_job,
    known_curve,
    profile_known,
    promised_deadline_s,
)
from elasticflow.shared.state.fold.admission import is_resubmission
from elasticflow.shared.state.fold.profiles import with_range
from elasticflow.shared.state.gpu_types import submitted_spec
from elasticflow.shared.state.idempotent_replies import is_submission_of, waits_for
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A submitted job, or one that waited for its profile.

    deadline_s: absolute. profile_only: the user asks for its throughput profile and no more.
    """

    job_id: str
    tenant: str
    spec: JobSpec
    deadline_s: float | None
    profile_only: bool = False


def in_order(session: AdmissionSession, commands: Sequence[SubmitJob]) -> tuple[AdmissionSession, Sequence[SubmitJob]]:
    """Submissions that came together, in the order of judgement: selective admission judges the smallest first."""
    demand = [_demand_of(session, command) for command in commands]
    session = session.expecting([each for each in demand if each[0] > 0])
    if not session.is_selective:
        return session, commands
    order = sorted(range(len(commands)), key=lambda index: demand[index][0])
    return session, [commands[index] for index in order]


def _demand_of(session: AdmissionSession, command: SubmitJob) -> Submitted:
    """0 GPU-seconds without a deadline, while the job's speed is unknown, for a known job, and beyond a quota."""
    spec, deadline_s = command.spec, command.spec.resolved_deadline_s(session.now_s)
    state = with_range(session.state, spec)
    curve = known_curve(state, spec, curves=session.cache.curves) if spec.job_class is JobClass.SLO else None
    if curve is None or deadline_s is None or state.job(command.job_id) is not None:
        return 0.0, 0.0
    job = arriving_job(state, command.job_id, spec, curve, deadline_s)
    asked = submitted(job, session.now_s)
    counts = counts_as_demand(state, _request(session, command.job_id, command.tenant, asked[0]))
    return asked if counts else (0.0, 0.0)


def submit(session: AdmissionSession, command: SubmitJob | ProfileJob) -> AdmissionSession:
    """Decide on a submission, unless the same was decided already."""
    session = fast_replace(session, state=with_range(session.state, command.spec))
    submission = submission_of(session, command)
    if (answered := repeated_or_wrong(session, submission, command)) is not None:
        return answered
    if isinstance(command, SubmitJob) and (taken := take(session, command)) is not None:
        return taken
    if session.state.num_gpus and is_decidable(session.state, command.spec):
        return admit_or_reject(session, submission)
    return request_profile(session, submission)


def submission_of(session: AdmissionSession, command: SubmitJob | ProfileJob) -> Submission:
    return Submission(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=command.spec,
        deadline_s=command.spec.resolved_deadline_s(session.now_s),
        profile_only=isinstance(command, ProfileJob),
    )


def is_decidable(state: PoolState, spec: JobSpec) -> bool:
    """Whether no profiling run is needed before the decision."""
    return profile_known(state, spec) or too_small(state, spec)


def repeated_or_wrong(
    session: AdmissionSession, submission: Submission, command: SubmitJob | ProfileJob
) -> AdmissionSession | None:
    """The answer to a submission that was decided already, or that no schedule can repair; None: decide on it."""
    state, spec = session.state, submission.spec
    if _is_reserved_by_another(session, submission):
        why = f"job_id: another tenant has reserved a quote under the name {command.job_id}; choose another"
        return _rejected(session, submission, "duplicate", why)
    known = state.job(submission.job_id)
    if known is not None and not is_resubmission(known, command):
        if is_submission_of(command, known):
            return session
        why = f"job_id: {submission.job_id} names another job already, of another spec or tenant; choose another"
        return _rejected(session, submission, "duplicate", why)
    problems = problems_of(state, spec, session.now_s)
    return _rejected(session, submission, "invalid", "; ".join(problems)) if problems else None


def request_profile(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Measure its speed first, or wait for the first node."""
    if (why := _objection(session, submission, 0.0)) is not None:
        return _rejected(session, submission, "quota", why)
    return session.with_event(
        ProfileRequested(
            job_id=submission.job_id,
            tenant=submission.tenant,
            spec=submission.spec,
            deadline_s=submission.deadline_s,
            profile_only=submission.profile_only,
            waits_for=waits_for(session.state),
            at_s=session.now_s,
        )
    )


def _is_reserved_by_another(session: AdmissionSession, submission: Submission) -> bool:
    quote = session.state.quote_reservations.get(submission.job_id)
    return quote is not None and quote.tenant != submission.tenant and session.now_s < quote.until_s


def decide_waiting(session: AdmissionSession, job: Job) -> AdmissionSession:
    """Decide on a job that waits for its profile or for the pool's first node, once that is there or the deadline is
    past."""
    state, spec, submission = session.state, spec_of(job), waiting_submission(job)
    if state.num_gpus and profile_known(state, spec):
        return decide_profiled(session, submission)
    return reject_late(session, submission)


def waiting_submission(job: Job) -> Submission:
    """The submission of a job that waits."""
    return Submission(
        job_id=job.job_id,
        tenant=job.tenant,
        spec=submitted_spec(job),
        deadline_s=job.deadline_s,
        profile_only=job.profile_only,
    )


def decide_profiled(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Decide on a job that waited, once its speed is known."""
    problems = size_problems(session.state, submission.spec)
    if problems:
        return _rejected(session, submission, "invalid", "; ".join(problems))
    return admit_or_reject(session, submission)


def reject_late(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Reject a job that waited until its deadline."""
    state = session.state
    if submission.deadline_s is not None and submission.deadline_s <= session.now_s:
        missed = "its speed was measured" if state.num_gpus else "a node joined the pool"
        reason = "deadline" if state.num_gpus else "unrunnable"
        return _rejected(session, submission, reason, f"its deadline passed before {missed}")
    return session


def unrunnable(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Reject a job of a GPU type that the pool does not have."""
    return _rejected(session, submission, "unrunnable", why_no_type(session.state, submission.spec))


def admit_or_reject(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return _rejected(session, submission, "unrunnable", why_unrunnable(state, spec))
    if submission.profile_only:
        rates = state.curves[spec.profile_key].iterations_per_s
        return session.with_event(JobProfiled(job_id=submission.job_id, iterations_per_s=rates, at_s=session.now_s))
    if spec.job_class is JobClass.SLO:
        job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
        return _promise_or_reject(session, submission, job)
    cheapest = curve.least_gpu_seconds(float(spec.max_iterations), math.inf)
    if (why := _objection(session, submission, cheapest)) is not None:
        return _rejected(session, submission, "quota", why)
    return _admitted(session, submission, cheapest)


def _promise_or_reject(session: AdmissionSession, submission: Submission, job: SchedulableJob) -> AdmissionSession:
    session, proposal = session.with_plan(), None
    least = least_gpu_seconds(job, session.now_s)
    is_possible, is_overpriced = math.isfinite(least), False
    if is_possible:
        session = session.with_pricing()
        is_overpriced = session.is_overpriced(job)
        if not is_overpriced:
            session, proposal = session.propose(job)
    if proposal is None:
        request = _request(session, submission.job_id, submission.tenant, least)
        is_demand = is_possible and counts_as_demand(session.state, request)
        session, rejection = rejection_of(
            session, job, submission.spec, is_overpriced=is_overpriced, is_demand=is_demand
        )
        why = why_not_taken(session, job) + rejection.explanation
        asked = least if is_demand else 0.0
        return _rejected(session, submission, rejection.reason, why, rejection, asked)
    needed = gpu_seconds(proposal.schedule)
    if (why := _objection(session, submission, needed)) is not None:
        return _rejected(session, submission, "quota", why)
    return _admitted(session, submission, needed, proposal, least)


def _admitted(
    session: AdmissionSession,
    submission: Submission,
    needed_gpu_seconds: float,
    proposal: Proposal | None = None,
    least_gpu_seconds: float = 0.0,
) -> AdmissionSession:
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
            at_s=session.now_s,
        )
    )


def _objection(session: AdmissionSession, submission: Submission, needed_gpu_seconds: float) -> str | None:
    """What a quota rule says against it."""
    return objection(session.state, _request(session, submission.job_id, submission.tenant, needed_gpu_seconds))


def _request(session: AdmissionSession, job_id: str, tenant: str, gpu_seconds: float) -> Request:
    return Request(job_id=job_id, tenant=tenant, gpu_seconds=gpu_seconds, at_s=session.now_s)


def _rejected(
    session: AdmissionSession,
    submission: Submission,
    reason: RejectionReason,
    explanation: str,
    rejection: Rejection | None = None,
    least_gpu_seconds: float = 0.0,
) -> AdmissionSession:
    earliest_s = rejection.earliest_deadline_s if rejection else None
    return session.with_event(
        JobRejected(
            job_id=submission.job_id,
            tenant=submission.tenant,
            spec=submission.spec,
            reason=reason,
            explanation=explanation,
            deadline_s=submission.deadline_s,
            earliest_deadline_s=(None if earliest_s is None else promised_deadline_s(session.state, earliest_s)),
            least_gpu_seconds=least_gpu_seconds,
            offers=rejection.offers if rejection else (),
            infeasibility_certificate=rejection.infeasibility_certificate if rejection else None,
            at_s=session.now_s,
        )
    )
