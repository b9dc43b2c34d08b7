"""The decision on a submission of known speed: taken on each GPU type on which it may run; the best one counts.

A job trains on one type. Each type is a pool of its own with its own plan and prices, so a promise on it rests on
curves that were measured there (docs/adr/0047).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from elasticflow.services.admission.commands.admit_or_reject import admit, refuse, reject
from elasticflow.services.admission.commands.submission import Submission, on_type
from elasticflow.services.admission.rejection.counteroffers import Refusal
from elasticflow.services.admission.rejection.text import why_not_elsewhere
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.messages.events import AdmissionEvent, JobAdmitted, JobRejected
from elasticflow.shared.messages.gpu_limits import GpuRange
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve
from elasticflow.shared.state.gpu_types import type_name
from elasticflow.shared.state.pool import spec_of

Refusals = Mapping[str, Refusal | JobRejected]  # by type


def decide_on_types(sessions: SessionsByType, submission: Submission, possible: list[str]) -> SessionsByType:
    """The type that admits it at the least cost; if none does, the one that offers the earliest deadline."""
    if submission.profile_only:
        possible = possible[:1]
    there = {gpu_type: on_type(sessions.state, submission, gpu_type) for gpu_type in possible}
    ready = {gpu_type: sessions.ready(gpu_type, submission.spec) for gpu_type in possible}
    if len(possible) > 1:
        priced = {gpu_type: cost_on_type(ready[gpu_type], there[gpu_type]) for gpu_type in possible}
        ready = {gpu_type: session for gpu_type, (session, _) in priced.items()}
        possible = sorted(possible, key=lambda gpu_type: priced[gpu_type][1])
    for gpu_type in possible:
        ready[gpu_type] = admit(ready[gpu_type], there[gpu_type])
        if ready[gpu_type].events and not isinstance(_answer(ready[gpu_type]), JobRejected):
            return _decided(sessions, submission, gpu_type, ready, {})
    refused = {
        gpu_type: _rejection(session) if session.events else refuse(session, there[gpu_type])
        for gpu_type, session in ready.items()
    }
    chosen = min(possible, key=lambda gpu_type: _offer_order(refused[gpu_type]))
    for gpu_type, refusal in refused.items():
        if isinstance(refusal, Refusal):
            ready[gpu_type] = reject(there[gpu_type], refusal) if gpu_type == chosen else refusal.decided
    return _decided(sessions, submission, chosen, ready, refused)


def _decided(
    sessions: SessionsByType,
    submission: Submission,
    chosen: str,
    after: Mapping[str, AdmissionSession],
    refused: Refusals,
) -> SessionsByType:
    """The types that are not chosen keep their plans."""
    for gpu_type, session in after.items():
        if gpu_type != chosen:
            sessions = sessions.with_session(gpu_type, session)
    answer = _as_submitted(sessions, submission, chosen, _answer(after[chosen]), refused)
    return sessions.after_type(chosen, after[chosen], (answer,))


def _answer(session: AdmissionSession) -> AdmissionEvent:
    (event,) = session.events
    return event


def _rejection(session: AdmissionSession) -> JobRejected:
    answer = _answer(session)
    assert isinstance(answer, JobRejected), "else its type would have been chosen"
    return answer


def _as_submitted(
    sessions: SessionsByType, submission: Submission, chosen: str, answer: AdmissionEvent, refused: Refusals
) -> AdmissionEvent:
    """The decision for the ledger: the user's spec and the type; of a rejection also the demand on the other types.

    In a pool of one type it is the answer itself, which is folded once.
    """
    if not isinstance(answer, JobAdmitted | JobRejected):
        return answer
    if len(sessions.state.gpu_types) <= 1 and answer.spec is submission.spec:
        return answer
    if isinstance(answer, JobAdmitted):
        return replace(answer, spec=submission.spec, gpu_type=chosen)
    others = {gpu_type: refusal for gpu_type, refusal in refused.items() if gpu_type != chosen}
    elsewhere = {
        gpu_type: refusal.least_gpu_seconds for gpu_type, refusal in others.items() if refusal.least_gpu_seconds
    }
    answer = replace(answer, spec=submission.spec, gpu_type=chosen, least_elsewhere=elsewhere)
    offered = _offered_elsewhere(sessions, others) if submission.sender_waits else ()
    why_not = (*offered, *why_not_elsewhere(sessions.state, submission.spec))
    if not others and not why_not:
        return answer
    explanation = "; ".join((f"on {type_name(sessions.state, chosen)}: {answer.explanation}", *why_not))
    return replace(answer, explanation=explanation)


def _offered_elsewhere(sessions: SessionsByType, others: Refusals) -> Iterator[str]:
    """The earliest deadline on each of the types that are not chosen."""
    now_s = sessions.whole.now_s
    for gpu_type, refusal in others.items():
        if refusal.reason in ("deadline", "price"):
            earliest_s = refusal.earliest_deadline_s
            offered = "no deadline is possible" if earliest_s is None else f"one in {earliest_s - now_s:.0f} s"
            yield f"on {type_name(sessions.state, gpu_type)} {offered}"


def _offer_order(refusal: Refusal | JobRejected) -> tuple[float, bool]:
    """The earliest deadline that is offered first."""
    earliest_s = math.inf if refusal.earliest_deadline_s is None else refusal.earliest_deadline_s
    return earliest_s, refusal.reason == "unrunnable"


def cost_on_type(session: AdmissionSession, submission: Submission) -> tuple[AdmissionSession, tuple[float, float]]:
    """What the job costs there: the expected promises that it displaces, and of equal costs the slowest type, which
    others want least. Without a promise: the seconds on as many GPUs as help, and until all jobs there are done.
    """
    spec, state = submission.spec, session.state
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return session, (math.inf, 0.0)
    if spec.job_class is not JobClass.SLO:
        iterations = float(spec.max_iterations)
        usable = spec.gpu_range.intersection(GpuRange(1, state.num_gpus))
        rates = (rate for num_gpus, rate in curve.rate_by_num_gpus.items() if usable.allows(num_gpus))
        fastest = max(rates, default=0.0)
        if not fastest:
            return session, (math.inf, 0.0)
        alone_s = iterations / fastest
        asked = curve.least_gpu_seconds(iterations, math.inf) + _left_gpu_seconds(session, submission.job_id)
        return session, (alone_s + asked / state.num_gpus, 0.0)
    job = arriving_job(state, submission.job_id, spec, curve, submission.deadline_s)
    least = least_gpu_seconds(job, session.now_s)
    if not math.isfinite(least):
        return session, (math.inf, 0.0)
    session = session.with_plan().with_pricing()
    return session, (session.displaced_promises(job), -least)


def _left_gpu_seconds(session: AdmissionSession, except_for: str) -> float:
    """What all other live jobs of the type still need, each on the number of GPUs on which it needs least.

    except_for: the job that is decided on. A profiling run may have brought it to this type.
    """
    state, left = session.state, 0.0
    for job in state.live_jobs.values():
        if job.job_id == except_for:
            continue
        curve = known_curve(state, spec_of(job), curves=session.cache.curves)
        iterations = max(spec_of(job).max_iterations - job.iteration, 0)
        left += curve.least_gpu_seconds(float(iterations), math.inf) if curve is not None and iterations else 0.0
    return left
