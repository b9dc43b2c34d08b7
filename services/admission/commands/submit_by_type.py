"""Submissions to a pool with several GPU types: decided on each type, then the best of these decisions counts.

A job trains on one type. Each type is a pool of its own with its own plan and prices, so a promise on it rests on
curves that were measured there (docs/adr/0047).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from elasticflow.services.admission.commands.admit_or_reject import admit_or_reject
from elasticflow.services.admission.commands.quote_and_reserve import take
from elasticflow.services.admission.commands.submission import (
    Submission,
    objection_to,
    profile_requested,
    rejected,
    submission_of,
    waiting_submission,
)
from elasticflow.services.admission.commands.submit import reject_late, repeated_or_wrong
from elasticflow.services.admission.rejection.text import size_problems, why_no_type, why_not_elsewhere
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.events import AdmissionEvent, JobAdmitted, JobRejected
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve, profile_known
from elasticflow.shared.state.gpu_types import accepts, large_enough_types, possible_types, spec_on, type_name
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of

Decisions = Mapping[str, AdmissionSession]  # by type: the session after the decision on it


def submit_by_type(sessions: SessionsByType, command: SubmitJob | ProfileJob) -> SessionsByType:
    """Decide on a submission, unless the same was decided already."""
    whole = sessions.whole
    submission = submission_of(command, whole.now_s)
    if (answered := repeated_or_wrong(whole, submission, command)) is not None:
        return sessions.after_whole(answered)
    if isinstance(command, SubmitJob) and (taken := _taken(sessions, command)) is not None:
        return taken
    possible = possible_types(whole.state, command.spec)
    if whole.state.num_gpus and not large_enough_types(whole.state, command.spec):
        why = why_no_type(whole.state, command.spec)
        return sessions.after_whole(rejected(whole, submission, "unrunnable", why))
    if not possible or _profiled(sessions, submission, possible) != possible:
        return sessions.after_whole(profile_requested(whole, submission))
    return _decided(sessions, submission, possible)


def decide_waiting_by_type(sessions: SessionsByType, job: Job) -> SessionsByType:
    """Decide on a job that waits for its profiles, or for GPUs.

    It waits for all types, except for one on which no GPU can be lent to its profiling run now: a later job of the
    profile is measured there. A user who asks for the profile alone waits for that type as well.
    """
    whole, submission = sessions.whole, waiting_submission(job)
    possible = possible_types(whole.state, submission.spec)
    profiled = _profiled(sessions, submission, possible)
    is_enough = profiled == possible or (not submission.profile_only and _lacks_gpus(whole.state, job, profiled))
    if not profiled or not is_enough:
        return sessions.after_whole(reject_late(whole, submission))
    problems = size_problems(whole.state, spec_on(whole.state, submission.spec, profiled[0]))
    if problems:
        return sessions.after_whole(rejected(whole, submission, "invalid", "; ".join(problems)))
    return _decided(sessions, submission, profiled)


def _taken(sessions: SessionsByType, command: SubmitJob) -> SessionsByType | None:
    """Promise what was quoted, on the type of the quote; None if no reservation serves the submission."""
    state = sessions.whole.state
    quote = state.quote_reservations.get(command.job_id)
    if quote is None or not accepts(state, command.spec, quote.spec.gpu_type):
        return None
    gpu_type = quote.spec.gpu_type
    taken = take(sessions.by_type[gpu_type], replace(command, spec=spec_on(state, command.spec, gpu_type)))
    if taken is None:
        return None
    promised = (
        replace(event, spec=command.spec, gpu_type=gpu_type) if isinstance(event, JobAdmitted) else event
        for event in taken.events
    )
    return sessions.after_type(gpu_type, taken, tuple(promised))


def _profiled(sessions: SessionsByType, submission: Submission, possible: list[str]) -> list[str]:
    """Those of these types on which its speed is known."""
    return [
        gpu_type
        for gpu_type in possible
        if profile_known(sessions.ready(gpu_type, submission.spec).state, _on(sessions, submission, gpu_type).spec)
    ]


def _lacks_gpus(state: PoolState, job: Job, profiled: list[str]) -> bool:
    """The allocator knows of the job, and has no GPU for its profiling run on the type that is next."""
    is_next = spec_of(job).gpu_type not in profiled
    return is_next and not job.num_gpus and state.allocation_based_on >= job.decided_sequence


def _on(sessions: SessionsByType, submission: Submission, gpu_type: str) -> Submission:
    return replace(submission, spec=spec_on(sessions.whole.state, submission.spec, gpu_type))


def _decided(sessions: SessionsByType, submission: Submission, possible: list[str]) -> SessionsByType:
    """Decide on each type. The other types keep their plans."""
    if submission.profile_only:
        possible = possible[:1]
    costs, after = dict[str, tuple[float, float]](), dict[str, AdmissionSession]()
    for gpu_type in possible:
        session, on_type = sessions.ready(gpu_type, submission.spec), _on(sessions, submission, gpu_type)
        session, costs[gpu_type] = _cost(session, on_type)
        after[gpu_type] = admit_or_reject(session, on_type)
    chosen = _best(costs, after)
    answer = _as_submitted(sessions, submission, chosen, after)
    why = None
    if isinstance(answer, JobAdmitted):  # the part of a type does not know all that the tenant asked for
        why = objection_to(sessions.whole, submission, answer.gpu_seconds)
    for gpu_type, session in after.items():
        is_given_up = isinstance(_answer(session), JobAdmitted) and (gpu_type != chosen or why is not None)
        sessions = sessions.with_session(gpu_type, session.replanned() if is_given_up else session)
    if why is not None:
        return sessions.after_whole(rejected(sessions.whole, submission, "quota", why))
    return sessions.after_type(chosen, after[chosen], (answer,))


def _answer(session: AdmissionSession) -> AdmissionEvent:
    (event,) = session.events
    return event


def _as_submitted(sessions: SessionsByType, submission: Submission, chosen: str, after: Decisions) -> AdmissionEvent:
    """The decision for the ledger: the user's spec, the type, and the demand on the other types."""
    answer = _answer(after[chosen])
    if not isinstance(answer, JobAdmitted | JobRejected):
        return answer
    others = {gpu_type: _answer(session) for gpu_type, session in after.items() if gpu_type != chosen}
    elsewhere = {
        gpu_type: event.least_gpu_seconds
        for gpu_type, event in others.items()
        if isinstance(event, JobAdmitted | JobRejected) and event.least_gpu_seconds
    }
    answer = replace(answer, spec=submission.spec, gpu_type=chosen, least_elsewhere=elsewhere)
    if isinstance(answer, JobAdmitted):
        return answer
    state = sessions.whole.state
    why_not = why_not_elsewhere(state, submission.spec)
    if not others and not why_not:
        return answer
    explanation = "; ".join((f"on {type_name(state, chosen)}: {answer.explanation}", *why_not))
    return replace(answer, explanation=explanation)


def _best(costs: Mapping[str, tuple[float, float]], after: Decisions) -> str:
    """The type that admits it at the least cost; if none does, the one that offers the earliest deadline."""

    def order(gpu_type: str) -> tuple[object, ...]:
        answer = _answer(after[gpu_type])
        if not isinstance(answer, JobRejected):
            return False, *costs[gpu_type]
        earliest_s = math.inf if answer.earliest_deadline_s is None else answer.earliest_deadline_s
        return True, earliest_s, answer.reason == "unrunnable"

    return min(after, key=order)


def _cost(session: AdmissionSession, submission: Submission) -> tuple[AdmissionSession, tuple[float, float]]:
    """What the job costs there: the expected promises that it displaces, and of equal costs the slowest type, which
    others want least. Without a promise: the seconds until all jobs there are done.
    """
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return session, (math.inf, 0.0)
    if spec.job_class is not JobClass.SLO:
        own = curve.least_gpu_seconds(float(spec.max_iterations), math.inf)
        return session, ((own + _left_gpu_seconds(session)) / state.num_gpus, 0.0)
    job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
    least = least_gpu_seconds(job, session.now_s)
    if not math.isfinite(least):
        return session, (math.inf, 0.0)
    session = session.with_plan().with_pricing()
    return session, (session.displaced_promises(job), -least)


def _left_gpu_seconds(session: AdmissionSession) -> float:
    """What all admitted jobs of the type still need, each on the number of GPUs on which it needs least."""
    state, left = session.state, 0.0
    for job in state.live_jobs.values():
        curve = known_curve(state, spec_of(job), curves=session.cache.curves)
        iterations = max(spec_of(job).max_iterations - job.iteration, 0)
        left += curve.least_gpu_seconds(float(iterations), math.inf) if curve is not None and iterations else 0.0
    return left
