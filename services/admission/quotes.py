"""Held quotes: what keeps a quoted deadline is reserved, until a submission takes it or its time is over.

What is reserved begins when the hold ends. So the deadline can be kept by whoever takes it at the last moment, and
until then the GPUs are of use to others.
"""

import math
from dataclasses import replace

from services.admission.promises import Promises, asks_no_less
from services.admission.refusals import no_deadline, size_problems, why_unquotable
from services.admission.rules import Request, objection
from shared.messages.commands import HoldQuote, SubmitJob
from shared.messages.events import JobAdmitted, QuoteHeld, QuoteRefused
from shared.messages.fold_curves import with_range
from shared.messages.job import JobClass
from shared.messages.pool_state import HeldQuote, PoolState
from shared.scheduling.job_table import SchedulableJob, Schedule, gpu_seconds
from shared.scheduling.outlook import known_curve, newcomer
from shared.scheduling.planned_pool import flat, quoted_job, unflat
from shared.scheduling.quoting import earliest_end_from_s, end_under_s, schedule_from

MAX_HELD_QUOTES = 64  # of one tenant at a time


def hold(
    state: PoolState, promises: Promises, wish: HoldQuote, now_s: float
) -> QuoteHeld | QuoteRefused | None:
    """The earliest deadline that moves nobody, reserved; None if this very wish is held already."""
    spec, held, state = wish.spec, state.held_quotes.get(wish.job_id), with_range(state, wish.spec)
    if held is not None and now_s < held.until_s and (held.tenant, held.spec) == (wish.tenant, spec):
        return None
    curve, until_s = known_curve(state, spec), now_s + wish.hold_s
    why = _obstacle(state, wish, now_s)
    if why is None and curve is None:
        why = why_unquotable(state, spec)
    if why is not None or curve is None:
        return QuoteRefused(job_id=wish.job_id, explanation=why or "", at_s=now_s)
    job = newcomer(state, wish.job_id, spec, curve, math.inf)
    found = _reservation(promises, job, until_s)
    if found is None:
        return QuoteRefused(job_id=wish.job_id, explanation=no_deadline(state), at_s=now_s)
    planned_s, schedule = found
    needed = gpu_seconds(schedule)
    why = objection(state, Request(job_id=wish.job_id, tenant=wish.tenant, gpu_seconds=needed, at_s=now_s))
    if why is not None:
        return QuoteRefused(job_id=wish.job_id, explanation=why, at_s=now_s)
    return QuoteHeld(
        job_id=wish.job_id,
        tenant=wish.tenant,
        spec=spec,
        deadline_s=planned_s + state.config.deadline_slack_s,
        schedule=flat(schedule),
        gpu_seconds=needed,
        replanned=promises.news(),
        until_s=until_s,
        at_s=now_s,
    )


def _obstacle(state: PoolState, wish: HoldQuote, now_s: float) -> str | None:
    """What stands against it before anything is planned."""
    known, held = state.job(wish.job_id), state.held_quotes.get(wish.job_id)
    if (known is not None and known.live) or (held is not None and now_s < held.until_s):
        return f"job_id: {wish.job_id} names another job or quote already; choose another"
    if wish.spec.job_class is not JobClass.SLO:
        return f"job_class: only slo jobs are promised a deadline, not {wish.spec.job_class.value}"
    if problems := size_problems(state, wish.spec):
        return "; ".join(problems)
    num_held = sum(quote.tenant == wish.tenant for quote in state.quotes_at(now_s))
    if num_held >= MAX_HELD_QUOTES:
        return f"{num_held} quotes are held for {wish.tenant}, no more are at a time"
    return None


def _reservation(promises: Promises, job: SchedulableJob, until_s: float) -> tuple[float, Schedule] | None:
    """The end to plan for, in whole seconds, and the schedule; None if there is none."""
    ends_s = earliest_end_from_s(promises.plan, job, until_s)
    if ends_s is None:
        return None
    deadline_s = promises.first_worth_s(job, float(math.ceil(ends_s)), 1.0)
    if deadline_s is None:
        return None
    schedule = schedule_from(promises.plan, replace(job, deadline_s=deadline_s), until_s)
    return None if schedule is None else (deadline_s, schedule)


def take(state: PoolState, promises: Promises, wish: SubmitJob, now_s: float) -> JobAdmitted | None:
    """The promise that was quoted, for a submission that asks for no more; None if nothing is held for it."""
    quote, deadline_s = quote_of(state, wish, now_s), wish.spec.resolved_deadline_s(now_s)
    state = with_range(state, wish.spec)
    curve = known_curve(state, wish.spec)
    if quote is None or deadline_s is None or curve is None or wish.spec.job_class is not JobClass.SLO:
        return None
    job = newcomer(state, wish.job_id, wish.spec, curve, deadline_s)
    if _shortfall(state, promises, quote, job):
        return None
    return JobAdmitted(
        job_id=wish.job_id,
        tenant=wish.tenant,
        spec=wish.spec,
        deadline_s=deadline_s,
        minimum_satisfactory_share=quote.schedule,
        gpu_seconds=quote.gpu_seconds,
        least_gpu_seconds=promises.least_gpu_seconds(job),
        replanned=promises.news(),
        at_s=now_s,
    )


def why_not_taken(state: PoolState, promises: Promises, job: SchedulableJob, now_s: float) -> str:
    """Beginning of a rejection under the name of a quote that is held; "" if none is."""
    quote = state.held_quotes.get(job.job_id)
    if quote is None or now_s >= quote.until_s:
        return ""
    return f"the quote held for it cannot be taken: {_shortfall(state, promises, quote, job)}; "


def _shortfall(state: PoolState, promises: Promises, quote: HeldQuote, job: SchedulableJob) -> str:
    """Why what is reserved does not do for a job; "" if it does."""
    if quote not in promises.held_quotes:  # a node was lost, say
        return "the GPUs for it are gone"
    quoted = quoted_job(state, quote)
    if quoted is None or not asks_no_less(quoted, job):
        return "it asks for more than was quoted"
    if end_under_s(promises.plan, job, unflat(quote.schedule)) > job.deadline_s:
        return "measured since, it is slower than was quoted on"
    return ""


def quote_of(state: PoolState, wish: SubmitJob, now_s: float) -> HeldQuote | None:
    """The quote that a submission names."""
    quote = state.held_quotes.get(wish.job_id)
    return quote if quote is not None and quote.tenant == wish.tenant and now_s < quote.until_s else None
