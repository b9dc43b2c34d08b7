"""Submissions to a pool with several GPU types: decided on each type, then on the one that costs others the least.

A job trains on one type. Each type is a pool of its own with its own plan and prices, so a promise on it rests on
curves that were measured there.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from elasticflow.services.admission.commands.quote_and_reserve import take
from elasticflow.services.admission.commands.submit import (
    Submission,
    admit_or_reject,
    is_decidable,
    reject_late,
    repeated_or_wrong,
    request_profile,
    submission_of,
    unrunnable,
    waiting_submission,
)
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import ProfileJob, SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, JobRejected
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve
from elasticflow.shared.state.fold.profiles import with_range
from elasticflow.shared.state.gpu_types import possible_types, spec_on
from elasticflow.shared.state.job import Job

Decided = Mapping[str, AdmissionSession]  # by type: the session after a decision on it


def submit_by_type(sessions: SessionsByType, command: SubmitJob | ProfileJob) -> SessionsByType:
    """Decide on a submission, unless the same was decided already."""
    whole = sessions.whole
    submission = submission_of(whole, command)
    if (answered := repeated_or_wrong(whole, submission, command)) is not None:
        return sessions.after_whole(answered)
    quote = whole.state.quote_reservations.get(command.job_id)
    if isinstance(command, SubmitJob) and quote is not None:
        gpu_type = quote.spec.gpu_type
        before = _ready(sessions, submission, gpu_type)
        taken = take(before, replace(command, spec=spec_on(whole.state, command.spec, gpu_type)))
        if taken is not None:
            return sessions.after_type(gpu_type, taken, _as_submitted(taken, submission, gpu_type, {}))
    return _decided(sessions, submission)


def decide_waiting_by_type(sessions: SessionsByType, job: Job) -> SessionsByType:
    """Decide on a job that waits for its profiles on all types, or for the pool's first node."""
    submission = waiting_submission(job)
    if not sessions.whole.state.num_gpus or _unknown_types(sessions, submission):
        return sessions.after_whole(reject_late(sessions.whole, submission))
    return _decided(sessions, submission)


def _decided(sessions: SessionsByType, submission: Submission) -> SessionsByType:
    whole = sessions.whole
    possible = possible_types(whole.state, submission.spec)
    if whole.state.num_gpus and not possible:
        return sessions.after_whole(unrunnable(whole, submission))
    if not possible or _unknown_types(sessions, submission):
        return sessions.after_whole(request_profile(whole, submission))
    costs = {gpu_type: _cost(sessions, submission, gpu_type) for gpu_type in possible}
    decided = {
        gpu_type: admit_or_reject(_ready(sessions, submission, gpu_type), _on(sessions, submission, gpu_type))
        for gpu_type in possible
    }
    cheapest = _cheapest(costs, decided)
    chosen = _earliest(decided) if cheapest is None else cheapest
    elsewhere = {name: cost[1] for name, cost in costs.items() if name != chosen and math.isfinite(cost[1])}
    for gpu_type, after in decided.items():
        is_given_up = gpu_type != chosen and isinstance(after.events[-1], JobAdmitted)
        sessions = sessions.with_session(gpu_type, after.replanned() if is_given_up else after)
    return sessions.after_type(chosen, decided[chosen], _as_submitted(decided[chosen], submission, chosen, elsewhere))


def _unknown_types(sessions: SessionsByType, submission: Submission) -> list[str]:
    """The possible types on which the job's speed must be measured first."""
    possible = possible_types(sessions.whole.state, submission.spec)
    return [
        gpu_type
        for gpu_type in possible
        if not is_decidable(
            _ready(sessions, submission, gpu_type).state, spec_on(sessions.whole.state, submission.spec, gpu_type)
        )
    ]


def _ready(sessions: SessionsByType, submission: Submission, gpu_type: str) -> AdmissionSession:
    """The session of the type, with a curve for the job's range."""
    session = sessions.by_type[gpu_type]
    spec = spec_on(sessions.whole.state, submission.spec, gpu_type)
    return fast_replace(session, state=with_range(session.state, spec), events=())


def _on(sessions: SessionsByType, submission: Submission, gpu_type: str) -> Submission:
    return replace(submission, spec=spec_on(sessions.whole.state, submission.spec, gpu_type))


def _as_submitted(
    after: AdmissionSession, submission: Submission, gpu_type: str, least_elsewhere: Mapping[str, float]
) -> tuple[JobAdmitted | JobRejected, ...]:
    """The decision for the ledger: the user's spec, and the type."""
    event = after.events[-1]
    if not isinstance(event, JobAdmitted | JobRejected):
        return after.events  # type: ignore[return-value]
    return (replace(event, spec=submission.spec, gpu_type=gpu_type, least_elsewhere=least_elsewhere),)


def _cheapest(costs: Mapping[str, tuple[float, float]], decided: Decided) -> str | None:
    """The type on which it displaces the fewest expected promises; of equal ones the slowest: others want it least."""
    admitted = [gpu_type for gpu_type, after in decided.items() if not isinstance(after.events[-1], JobRejected)]
    return min(admitted, key=lambda gpu_type: (costs[gpu_type][0], -costs[gpu_type][1]), default=None)


def _cost(sessions: SessionsByType, submission: Submission, gpu_type: str) -> tuple[float, float]:
    """Expected promises that it displaces, and the GPU-seconds that it needs at least; inf: it cannot end in time."""
    session = _ready(sessions, submission, gpu_type)
    spec = spec_on(sessions.whole.state, submission.spec, gpu_type)
    curve = known_curve(session.state, spec, curves=session.cache.curves)
    if curve is None:
        return math.inf, math.inf
    if submission.deadline_s is None:
        return 0.0, -1.0 / curve.least_gpu_seconds(float(spec.max_iterations), math.inf)  # soon: the fastest
    job = arriving_job(session.state, submission.job_id, spec, curve, submission.deadline_s)
    return session.with_plan().displaced_promises(job), least_gpu_seconds(job, session.now_s)


def _earliest(decided: Decided) -> str:
    """The type whose rejection offers the earliest deadline."""

    def offered_s(gpu_type: str) -> float:
        event = decided[gpu_type].events[-1]
        earliest_s = event.earliest_deadline_s if isinstance(event, JobRejected) else None
        return math.inf if earliest_s is None else earliest_s

    return min(decided, key=offered_s)
