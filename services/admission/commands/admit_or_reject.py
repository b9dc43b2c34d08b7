"""The decision on a job of known speed: promised, admitted without a promise, profiled as requested, or rejected."""

import math

from elasticflow.services.admission.commands.reserve import why_not_taken
from elasticflow.services.admission.commands.submission import (
    Submission,
    admitted,
    objection_to,
    rejected,
    request_of,
)
from elasticflow.services.admission.quota_rules import counts_as_demand
from elasticflow.services.admission.rejection.counteroffers import Refusal, refusal_of
from elasticflow.services.admission.rejection.text import why_unrunnable
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.events import JobProfiled
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve


def admit(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Decide on it beside all promises of the session; without an event if the deadline or the price is a reason to
    `refuse` it. Counteroffers take longer than a promise, and another GPU type may admit it."""
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return rejected(session, submission, "unrunnable", why_unrunnable(state, spec))
    if submission.profile_only:
        rates = state.curves[spec.profile_key].iterations_per_s
        return session.with_event(JobProfiled(job_id=submission.job_id, iterations_per_s=rates, at_s=session.now_s))
    if spec.job_class is JobClass.SLO:
        job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
        return _promise(session, submission, job)
    cheapest = curve.least_gpu_seconds(float(spec.max_iterations), math.inf)
    if (why := objection_to(session, submission, cheapest)) is not None:
        return rejected(session, submission, "quota", why)
    return admitted(session, submission, cheapest)


def _promise(session: AdmissionSession, submission: Submission, job: SchedulableJob) -> AdmissionSession:
    """Without an event if it cannot be promised."""
    session = session.with_plan()
    least = least_gpu_seconds(job, session.now_s)
    if not math.isfinite(least):
        return session
    session = session.with_pricing()
    if session.is_overpriced(job):
        return session
    session, proposal = session.propose(job)
    if proposal is None:
        return session
    needed = gpu_seconds(proposal.schedule)
    if (why := objection_to(session, submission, needed)) is not None:
        return rejected(session, submission, "quota", why)
    return admitted(session, submission, needed, proposal, least)


def refuse(session: AdmissionSession, submission: Submission) -> Refusal:
    """After `admit` without an event: the earliest deadline that could be promised instead, if its sender waits."""
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    assert curve is not None, "else `admit` has rejected it"
    job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
    least = least_gpu_seconds(job, session.now_s)
    is_possible = math.isfinite(least)
    is_demand = is_possible and counts_as_demand(state, request_of(session, submission, least))
    is_overpriced = is_possible and session.is_overpriced(job)
    least = least if is_demand else 0.0
    return refusal_of(session, job, spec, least, is_overpriced=is_overpriced, makes_offers=submission.sender_waits)


def reject(submission: Submission, refusal: Refusal) -> AdmissionSession:
    """With the reason and counteroffers."""
    rejection = refusal.rejection()
    why = why_not_taken(refusal.decided, refusal.job) + rejection.explanation
    return rejected(refusal.decided, submission, refusal.reason, why, refusal, rejection)
