"""Submissions: a job is decided on at once, or waits for its profile or for the pool's first node."""

from collections.abc import Sequence

from elasticflow.services.admission.commands.admit_or_reject import admit_or_reject
from elasticflow.services.admission.commands.quote_and_reserve import take
from elasticflow.services.admission.commands.submission import (
    Submission,
    profile_requested,
    rejected,
    request_of,
    submission_of,
    waiting_submission,
)
from elasticflow.services.admission.quota_rules import counts_as_demand
from elasticflow.services.admission.rejection.text import problems_of, size_problems, too_small
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.admission_pricing import Submitted, submitted
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve, profile_known
from elasticflow.shared.state.fold.admission import is_resubmission
from elasticflow.shared.state.fold.profiles import with_range
from elasticflow.shared.state.gpu_types import spec_on
from elasticflow.shared.state.idempotent_replies import is_submission_of
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import spec_of


def in_order(session: AdmissionSession, commands: Sequence[SubmitJob]) -> tuple[AdmissionSession, Sequence[SubmitJob]]:
    """Submissions that came together, in the order of judgement: selective admission judges the smallest first."""
    demand = [demand_of(session, command) for command in commands]
    session = session.expecting([each for each in demand if each[0] > 0])
    if not session.is_selective:
        return session, commands
    order = sorted(range(len(commands)), key=lambda index: demand[index][0])
    return session, [commands[index] for index in order]


def demand_of(session: AdmissionSession, command: SubmitJob) -> Submitted:
    """0 GPU-seconds without a deadline, while the job's speed is unknown, for a known job, and beyond a quota."""
    submission = submission_of(command, session.now_s)
    spec, deadline_s = submission.spec, submission.deadline_s
    state = with_range(session.state, spec)
    curve = known_curve(state, spec, curves=session.cache.curves) if spec.job_class is JobClass.SLO else None
    if curve is None or deadline_s is None or state.job(command.job_id) is not None:
        return 0.0, 0.0
    job = arriving_job(state, command.job_id, spec, curve, deadline_s)
    asked = submitted(job, session.now_s)
    counts = counts_as_demand(state, request_of(session, submission, asked[0]))
    return asked if counts else (0.0, 0.0)


def submit(session: AdmissionSession, command: SubmitJob | ProfileJob) -> AdmissionSession:
    """Decide on a submission, unless the same was decided already."""
    session = fast_replace(session, state=with_range(session.state, command.spec))
    submission = submission_of(command, session.now_s)
    if (answered := repeated_or_wrong(session, submission, command)) is not None:
        return answered
    if isinstance(command, SubmitJob) and (taken := take(session, command)) is not None:
        return taken
    state, spec = session.state, command.spec
    if state.num_gpus and (profile_known(state, spec) or too_small(state, spec)):
        return admit_or_reject(session, submission)
    return profile_requested(session, submission)


def repeated_or_wrong(
    session: AdmissionSession, submission: Submission, command: SubmitJob | ProfileJob
) -> AdmissionSession | None:
    """The answer to a submission that was decided already, or that no schedule can repair; None: decide on it."""
    state, spec = session.state, submission.spec
    if _is_reserved_by_another(session, submission):
        why = f"job_id: another tenant has reserved a quote under the name {command.job_id}; choose another"
        return rejected(session, submission, "duplicate", why)
    known = state.job(submission.job_id)
    if known is not None and not is_resubmission(known, command):
        if is_submission_of(command, known):
            return session
        why = f"job_id: {submission.job_id} names another job already, of another spec or tenant; choose another"
        return rejected(session, submission, "duplicate", why)
    problems = problems_of(state, spec_on(state, spec, spec.gpu_type), session.now_s)
    return rejected(session, submission, "invalid", "; ".join(problems)) if problems else None


def _is_reserved_by_another(session: AdmissionSession, submission: Submission) -> bool:
    quote = session.state.quote_reservations.get(submission.job_id)
    return quote is not None and quote.tenant != submission.tenant and session.now_s < quote.until_s


def decide_waiting(session: AdmissionSession, job: Job) -> AdmissionSession:
    """Decide on a job that waits for its profile or for the pool's first node, once that is there or the deadline is
    past."""
    state, spec, submission = session.state, spec_of(job), waiting_submission(job)
    if not state.num_gpus or not profile_known(state, spec):
        return reject_late(session, submission)
    problems = size_problems(state, spec)
    if problems:
        return rejected(session, submission, "invalid", "; ".join(problems))
    return admit_or_reject(session, submission)


def reject_late(session: AdmissionSession, submission: Submission) -> AdmissionSession:
    """Reject a job that waited until its deadline."""
    state = session.state
    if submission.deadline_s is not None and submission.deadline_s <= session.now_s:
        missed = "its speed was measured" if state.num_gpus else "a node joined the pool"
        reason = "deadline" if state.num_gpus else "unrunnable"
        return rejected(session, submission, reason, f"its deadline passed before {missed}")
    return session
