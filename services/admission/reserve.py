"""A reservation keeps a quoted deadline for a while, until a submission takes it.

The reserved schedule begins when the reservation expires. So a user who takes it at the last moment gets the deadline,
and until then other jobs use the GPUs.
"""

import math
from dataclasses import replace

from elasticflow.services.admission.quota_rules import QuotaRequest, objection
from elasticflow.services.admission.rejection import (
    continuation_problems,
    no_deadline,
    size_problems,
    timeout_problems,
    why_no_type,
    why_unquotable,
)
from elasticflow.services.admission.session import AdmissionSession, SessionsByType
from elasticflow.shared.messages.commands import ReserveQuote, SubmitJob
from elasticflow.shared.messages.events import JobAdmitted, QuoteRejected, QuoteReserved
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.admission.admission_search import earliest_end_from_s, end_under_s, schedule_from
from elasticflow.shared.scheduling.admission.planned_pool import flat, quoted_job, unflat
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    arriving_job,
    known_curve,
    promised_deadline_s,
)
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import accepts, possible_types, shown_type, spec_on, type_name
from elasticflow.shared.state.pool import PoolState, QuoteReservation

MAX_QUOTE_RESERVATIONS = 64  # of one tenant at a time


def reserve(sessions: SessionsByType, command: ReserveQuote) -> SessionsByType:
    """Reserve the earliest deadline of all GPU types that moves no other job, unless the same reservation exists."""
    whole, state = sessions.whole, sessions.state
    if _is_reserved(state, command, whole.now_s):
        return sessions
    types = possible_types(state, command.spec)
    why = _quote_obstacle(state, command, whole.now_s)
    if why is not None or not types:
        return sessions.after_whole(_rejected(whole, command, why or why_no_type(state, command.spec)))
    found = {
        gpu_type: _reserve_on_type(
            sessions.by_type[gpu_type], replace(command, spec=spec_on(state, command.spec, gpu_type))
        )
        for gpu_type in types
    }

    def quoted_s(gpu_type: str) -> float:
        (event,) = found[gpu_type].events
        return event.deadline_s if isinstance(event, QuoteReserved) else math.inf

    chosen = min(found, key=quoted_s)
    if len(found) > 1 and quoted_s(chosen) == math.inf:
        why = "; ".join(f"on {type_name(state, gpu_type)}: {_why(each)}" for gpu_type, each in found.items())
        return sessions.after_whole(_rejected(whole, command, why))
    return sessions.after_type(chosen, found[chosen])


def _why(rejected: AdmissionSession) -> str:
    (event,) = rejected.events
    return event.explanation if isinstance(event, QuoteRejected) else ""


def _is_reserved(state: PoolState, command: ReserveQuote, now_s: float) -> bool:
    """Whether a reservation answers the command already."""
    quote = state.quote_reservations.get(command.job_id)
    if quote is None or now_s >= quote.until_s or not accepts(state, command.spec, quote.spec.gpu_type):
        return False
    asked = spec_on(state, command.spec, quote.spec.gpu_type)
    return (quote.tenant, quote.spec) == (command.tenant, asked)


def _reserve_on_type(session: AdmissionSession, command: ReserveQuote) -> AdmissionSession:
    spec, now_s = command.spec, session.now_s
    state, until_s = with_profile(session.state, spec), now_s + command.reserve_s
    curve = known_curve(state, spec, curves=session.cache.curves)
    if curve is None:
        return _rejected(session, command, why_unquotable(state, spec))
    job = arriving_job(state, command.job_id, spec, curve, math.inf)
    session, found = _reservation(session.with_plan(), job, until_s)
    if found is None:
        return _rejected(session, command, no_deadline(state, job, session.promisable_gpus, now_s))
    planned_s, schedule = found
    needed = gpu_seconds(schedule)
    request = QuotaRequest(job_id=command.job_id, tenant=command.tenant, gpu_seconds=needed, at_s=now_s)
    if (why := objection(session.pool, request)) is not None:
        return _rejected(session, command, why)
    reserved = QuoteReserved(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=spec,
        deadline_s=promised_deadline_s(state, planned_s),
        schedule=flat(schedule),
        gpu_seconds=needed,
        replanned=session.changed_schedules(),
        until_s=until_s,
        gpu_type=shown_type(state, spec.gpu_type),
        at_s=now_s,
    )
    return session.with_event(reserved).replanned()


def _rejected(session: AdmissionSession, command: ReserveQuote, why: str) -> AdmissionSession:
    return session.with_event(
        QuoteRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=session.now_s)
    )


def _quote_obstacle(state: PoolState, command: ReserveQuote, now_s: float) -> str | None:
    """What speaks against it before anything is planned."""
    known, quote = state.job(command.job_id), state.quote_reservations.get(command.job_id)
    if (known is not None and known.live) or (quote is not None and now_s < quote.until_s):
        return f"job_id: {command.job_id} names another job or quote already; choose another"
    if command.spec.job_class is not JobClass.SLO:
        return f"job_class: only slo jobs are promised a deadline, not {command.spec.job_class.value}"
    problems = [
        *size_problems(state, command.spec),
        *timeout_problems(state.config, command.spec),
        *continuation_problems(state, command.spec, command.tenant),
    ]
    if problems:
        return "; ".join(problems)
    num_reserved = sum(quote.tenant == command.tenant for quote in state.quotes_at(now_s))
    if num_reserved >= MAX_QUOTE_RESERVATIONS:
        return (
            f"tenant {command.tenant} has {num_reserved} reserved quotes, which is the limit; "
            f"submit one of these jobs, or wait until a reservation expires"
        )
    return None


def _reservation(
    session: AdmissionSession, job: SchedulableJob, until_s: float
) -> tuple[AdmissionSession, tuple[PlannedTime, Schedule] | None]:
    """The end to plan for, in whole seconds, and the schedule; None if there is none."""
    ends_s = earliest_end_from_s(session.plan, job, until_s)
    if ends_s is None:
        return session, None
    session = session.with_pricing()
    deadline_s = session.first_affordable_s(job, float(math.ceil(ends_s)), 1.0)
    if deadline_s is None:
        return session, None
    schedule = schedule_from(session.plan, replace(job, deadline_s=deadline_s), until_s)
    return session, None if schedule is None else (deadline_s, schedule)


def take(sessions: SessionsByType, command: SubmitJob) -> SessionsByType | None:
    """Promise what was quoted, on the type of the quote, if the submission asks for no more; None if no reservation
    serves it."""
    state, now_s = sessions.state, sessions.whole.now_s
    quote = state.quote_reservations.get(command.job_id)
    if quote is None or quote.tenant != command.tenant or now_s >= quote.until_s:
        return None
    if not accepts(state, command.spec, quote.spec.gpu_type):
        return None
    admitted = _promised_as_quoted(sessions.by_type[quote.spec.gpu_type], command, quote)
    if admitted is None:
        return None
    return sessions.after_type(quote.spec.gpu_type, admitted)


def _promised_as_quoted(
    session: AdmissionSession, command: SubmitJob, quote: QuoteReservation
) -> AdmissionSession | None:
    now_s, gpu_type = session.now_s, quote.spec.gpu_type
    spec = spec_on(session.state, command.spec, gpu_type)
    deadline_s, state = spec.resolved_deadline_s(now_s), with_profile(session.state, spec)
    curve = known_curve(state, spec, curves=session.cache.curves)
    if deadline_s is None or curve is None or spec.job_class is not JobClass.SLO:
        return None
    session, job = session.with_plan(), arriving_job(state, command.job_id, spec, curve, deadline_s)
    if _shortfall(session, quote, job):
        return None
    admitted = JobAdmitted(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=command.spec,
        deadline_s=deadline_s,
        minimum_satisfactory_share=quote.schedule,
        gpu_seconds=quote.gpu_seconds,
        least_gpu_seconds=least_gpu_seconds(job, now_s),
        replanned=session.changed_schedules(),
        gpu_type=gpu_type,
        replaces=command.replaces,
        at_s=now_s,
    )
    return session.with_event(admitted).replanned()


def why_not_taken(session: AdmissionSession, job: SchedulableJob) -> str:
    """The beginning of a rejection of a job for which a quote is reserved; "" without a reservation."""
    quote = session.state.quote_reservations.get(job.job_id)
    if quote is None or session.now_s >= quote.until_s:
        return ""
    return f"its reserved quote cannot be taken: {_shortfall(session, quote, job)}; "


def _shortfall(session: AdmissionSession, quote: QuoteReservation, job: SchedulableJob) -> str:
    """Why the reservation does not suffice for a job; "" if it does."""
    if quote not in session.quote_reservations:  # a node was lost, say
        return "its GPUs are lost"
    quoted = quoted_job(session.state, quote, session.cache.curves)
    if quoted is None or not quoted.asks_no_less_than(job):
        return "the submission asks for more than was quoted"
    if end_under_s(session.plan, job, unflat(quote.schedule)) > job.deadline_s:
        return "the job was measured since, and is slower than the quote assumed"
    return ""
