"""A quote is the earliest deadline that would be promised now; a reservation keeps it for a while.

`quote` reserves nothing. What keeps a quoted deadline is reserved until a submission takes it, or until it expires.
The reserved schedule begins when the reservation expires. So a user who takes it at the last moment gets the deadline,
and until then other jobs use the GPUs.
"""

import math
from dataclasses import replace

from elasticflow.services.admission.quota_rules import Request, objection
from elasticflow.services.admission.rejection.text import (
    no_deadline,
    problems_of,
    size_problems,
    why_no_type,
    why_unquotable,
)
from elasticflow.services.admission.session import AdmissionSession, asks_no_less
from elasticflow.shared.messages.commands import QuoteDeadline, ReserveQuote, SubmitJob
from elasticflow.shared.messages.events import DeadlineQuoted, JobAdmitted, QuoteRejected, QuoteReserved
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.admission_pricing import least_gpu_seconds
from elasticflow.shared.scheduling.availability.earliest_completion import (
    earliest_end_from_s,
    end_under_s,
    schedule_from,
)
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, gpu_seconds
from elasticflow.shared.scheduling.jobs.planned_pool import flat, quoted_job, unflat
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    arriving_job,
    known_curve,
    promised_deadline_s,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.profiles import with_range
from elasticflow.shared.state.gpu_types import part_of_type, possible_types, spec_on, type_name
from elasticflow.shared.state.pool import PoolState, QuoteReservation

MAX_QUOTE_RESERVATIONS = 64  # of one tenant at a time


def reserve(session: AdmissionSession, command: ReserveQuote) -> AdmissionSession:
    """Reserve the earliest deadline that moves no other job, unless the same reservation exists already."""
    spec, quote, now_s = command.spec, session.state.quote_reservations.get(command.job_id), session.now_s
    if quote is not None and is_reserved(quote, command, now_s):
        return session
    state = with_range(session.state, spec)
    curve, until_s = known_curve(state, spec, curves=session.cache.curves), now_s + command.reserve_s
    why = obstacle(state, command, now_s)
    if why is None and curve is None:
        why = why_unquotable(state, spec)
    if why is not None or curve is None:
        return quote_rejected(session, command, why or "")
    job = arriving_job(state, command.job_id, spec, curve, math.inf)
    session, found = _reservation(session.with_plan(), job, until_s)
    if found is None:
        return quote_rejected(session, command, no_deadline(state))
    planned_s, schedule = found
    needed = gpu_seconds(schedule)
    request = Request(job_id=command.job_id, tenant=command.tenant, gpu_seconds=needed, at_s=now_s)
    if (why := objection(state, request)) is not None:
        return quote_rejected(session, command, why)
    reserved = QuoteReserved(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=spec,
        deadline_s=promised_deadline_s(state, planned_s),
        schedule=flat(schedule),
        gpu_seconds=needed,
        replanned=session.changed_schedules(),
        until_s=until_s,
        at_s=now_s,
    )
    return session.with_event(reserved).replanned()


def is_reserved(quote: QuoteReservation, command: ReserveQuote, now_s: float) -> bool:
    """Whether this reservation answers the command."""
    return now_s < quote.until_s and (quote.tenant, quote.spec) == (command.tenant, command.spec)


def quote_rejected(session: AdmissionSession, command: ReserveQuote, why: str) -> AdmissionSession:
    return session.with_event(QuoteRejected(job_id=command.job_id, explanation=why, at_s=session.now_s))


def obstacle(state: PoolState, command: ReserveQuote, now_s: float) -> str | None:
    """What speaks against it before anything is planned."""
    known, quote = state.job(command.job_id), state.quote_reservations.get(command.job_id)
    if (known is not None and known.live) or (quote is not None and now_s < quote.until_s):
        return f"job_id: {command.job_id} names another job or quote already; choose another"
    if command.spec.job_class is not JobClass.SLO:
        return f"job_class: only slo jobs are promised a deadline, not {command.spec.job_class.value}"
    if problems := size_problems(state, command.spec):
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


def take(session: AdmissionSession, command: SubmitJob) -> AdmissionSession | None:
    """Promise what was quoted, if the submission asks for no more; None if no reservation serves it."""
    now_s, spec = session.now_s, command.spec
    quote, deadline_s = _quote_of(session.state, command, now_s), spec.resolved_deadline_s(now_s)
    state = with_range(session.state, spec)
    curve = known_curve(state, spec, curves=session.cache.curves)
    if quote is None or deadline_s is None or curve is None or spec.job_class is not JobClass.SLO:
        return None
    session, job = session.with_plan(), arriving_job(state, command.job_id, spec, curve, deadline_s)
    if _shortfall(session, quote, job):
        return None
    admitted = JobAdmitted(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=spec,
        deadline_s=deadline_s,
        minimum_satisfactory_share=quote.schedule,
        gpu_seconds=quote.gpu_seconds,
        least_gpu_seconds=least_gpu_seconds(job, now_s),
        replanned=session.changed_schedules(),
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
    if quoted is None or not asks_no_less(quoted, job):
        return "the submission asks for more than was quoted"
    if end_under_s(session.plan, job, unflat(quote.schedule)) > job.deadline_s:
        return "the job was measured since, and is slower than the quote assumed"
    return ""


def _quote_of(state: PoolState, command: SubmitJob, now_s: float) -> QuoteReservation | None:
    """The reservation that a submission names."""
    quote = state.quote_reservations.get(command.job_id)
    return quote if quote is not None and quote.tenant == command.tenant and now_s < quote.until_s else None


def quote(
    state: PoolState, question: QuoteDeadline, now_s: float, cache: PlanningCache | None = None
) -> DeadlineQuoted:
    """The earliest deadline that this job would be promised now, on any GPU type, or why there is none."""
    cache = PlanningCache() if cache is None else cache
    possible = possible_types(state, question.spec)
    if state.num_gpus and not possible:
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why_no_type(state, question.spec), at_s=now_s)
    answers = [
        _quote_on_type(
            part_of_type(state, gpu_type),
            replace(question, spec=spec_on(state, question.spec, gpu_type)),
            now_s,
            cache.of_type(gpu_type),
        )
        for gpu_type in possible or [""]
    ]
    return min(answers, key=lambda answer: answer.earliest_deadline_s or math.inf)


def _quote_on_type(state: PoolState, question: QuoteDeadline, now_s: float, cache: PlanningCache) -> DeadlineQuoted:
    spec, state = question.spec, with_range(state, question.spec)
    session = AdmissionSession.start(state, now_s, cache)
    problems = problems_of(state, replace(spec, job_class=JobClass.BEST_EFFORT), now_s)
    curve = known_curve(state, spec, curves=session.cache.curves)
    if problems or curve is None:
        why = "; ".join(problems) or why_unquotable(state, spec)
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, at_s=now_s)
    job = arriving_job(state, "quote", spec, curve, math.inf)
    session = session.expecting_another().with_pricing().with_search()
    planned_s = session.earliest_deadline_s(job)
    if planned_s is None:
        return DeadlineQuoted(earliest_deadline_s=None, explanation=no_deadline(state), at_s=now_s)
    proposal = session.admission_search.propose(replace(job, deadline_s=planned_s))
    return DeadlineQuoted(
        earliest_deadline_s=promised_deadline_s(state, planned_s),
        gpu_seconds=gpu_seconds(proposal.schedule) if proposal else None,
        gpu_type=type_name(state, spec.gpu_type) if len(state.gpu_types) > 1 else "",
        at_s=now_s,
    )
