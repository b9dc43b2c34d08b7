"""Renegotiation: another deadline or another number of iterations for a job that was promised one already.

The job is planned anew beside all other promises; only where that works is the old promise given up.
"""

import math
from dataclasses import dataclass, replace

from services.admission.promises import Promises, asks_no_less
from services.admission.rules import Request, objection
from shared.messages.commands import AmendJob
from shared.messages.events import AmendRefused, JobAmended
from shared.messages.offer import Offer
from shared.messages.pool_state import Job, Phase, PoolState, spec_of
from shared.scheduling.job_table import SchedulableJob, Schedule, gpu_seconds
from shared.scheduling.outlook import known_curve, planned_deadline_s, resize_cost
from shared.scheduling.planned_pool import PlannedPool, flat, planned_pool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What the job is to be from now on."""

    deadline_s: float | None
    max_iterations: int


def amend(state: PoolState, promises: Promises, wish: AmendJob, now_s: float) -> JobAmended | AmendRefused:
    """Grant it if it can be kept beside all other promises. The same wish again is granted again."""
    job = state.job(wish.job_id)
    why = _obstacle(job, wish, now_s)
    if why is not None or job is None:
        return AmendRefused(job_id=wish.job_id, explanation=why or "", at_s=now_s)
    terms = _Terms(
        deadline_s=job.deadline_s if wish.deadline_s is None else wish.deadline_s,
        max_iterations=wish.max_iterations or spec_of(job).max_iterations,
    )
    if job.promised:
        return _promise_anew(state, promises, job, terms, now_s)
    return JobAmended(
        job_id=job.job_id,
        deadline_s=terms.deadline_s,
        max_iterations=terms.max_iterations,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=now_s,
    )


def _obstacle(job: Job | None, wish: AmendJob, now_s: float) -> str | None:
    """What stands against it before anything is planned."""
    if job is None or job.tenant != wish.tenant:
        return f"tenant {wish.tenant} has no such job; `eflow jobs --all` lists them"
    if not job.live:
        return f"it has ended already: {job.phase.value}"
    if job.phase is Phase.PROFILING:
        return "its speed is being measured: nothing is promised yet; amend it once it is admitted"
    if wish.deadline_s is None and wish.max_iterations is None:
        return "deadline_s, max_iterations: give one of them at least"
    if wish.deadline_s is not None and not spec_of(job).job_class.has_deadline:
        return f"deadline_s: a {spec_of(job).job_class.value} job has none"
    if wish.deadline_s is not None and wish.deadline_s <= now_s:
        return f"deadline_s: it is {now_s - wish.deadline_s:.0f} s in the past; choose a later one"
    if wish.max_iterations is not None and wish.max_iterations <= job.iteration:
        return f"max_iterations: it has done {job.iteration} already; choose more, or cancel it"
    return None


def _promise_anew(
    state: PoolState, promises: Promises, job: Job, terms: _Terms, now_s: float
) -> JobAmended | AmendRefused:
    pool = planned_pool(state, now_s, without=job.job_id)
    before = _as_it_is(state, pool, job)
    if before is None:
        why = "it runs nowhere here now"
        return AmendRefused(job_id=job.job_id, explanation=why, at_s=now_s)
    after = _on(state, before, job, terms)
    held = promises.plan.schedules.get(job.job_id, ())
    found = _schedules(pool, promises, after, held)
    dear = not asks_no_less(before, after) and promises.is_too_dear(after)
    if found is None or dear:
        offer = _offer(state, pool, promises, after, terms, job)
        why = _why_not(after, dear, offer, now_s)
        return AmendRefused(job_id=job.job_id, explanation=why, offers=(offer,) if offer else (), at_s=now_s)
    schedule, replanned = found
    more = max(gpu_seconds(schedule) - gpu_seconds(held), 0.0)
    request = Request(job_id=job.job_id, tenant=job.tenant, gpu_seconds=more, num_new_jobs=0, at_s=now_s)
    why = objection(state, request) if more else None
    if why is not None:
        return AmendRefused(job_id=job.job_id, explanation=why, at_s=now_s)
    return JobAmended(
        job_id=job.job_id,
        deadline_s=terms.deadline_s,
        max_iterations=terms.max_iterations,
        minimum_satisfactory_share=flat(schedule),
        gpu_seconds=more,
        replanned=replanned,
        at_s=now_s,
    )


def _as_it_is(state: PoolState, pool: PlannedPool, job: Job) -> SchedulableJob | None:
    """The job under its present promise; None if it runs nowhere here."""
    row = next((row for row, listed in enumerate(pool.listed) if listed.job_id == job.job_id), None)
    curve = known_curve(state, spec_of(job), job.speed)
    if row is None or curve is None:
        return None
    jobs = pool.plan.table.jobs
    return SchedulableJob(
        job_id=job.job_id,
        curve=curve,
        remaining_iterations=float(jobs.remaining_J[row]),
        deadline_s=planned_deadline_s(state, job.deadline_s),
        current_num_gpus=int(jobs.held_J[row]),
        resize_cost=resize_cost(state),
        stalled_until_s=float(jobs.stalled_until_J[row]),
        reserve_nodes=state.config.reserve_nodes,
        notice_s=state.config.heartbeat_timeout_s,
    )


def _on(state: PoolState, before: SchedulableJob, job: Job, terms: _Terms) -> SchedulableJob:
    """The job on new terms. Workers learn of other iterations in a new generation: whatever it holds, it stops once."""
    more = terms.max_iterations - spec_of(job).max_iterations
    return replace(
        before,
        deadline_s=planned_deadline_s(state, terms.deadline_s),
        remaining_iterations=max(before.remaining_iterations + more, 1.0),
        current_num_gpus=0 if more else before.current_num_gpus,
        stalled_until_s=-math.inf if more else before.stalled_until_s,
    )


def _schedules(
    pool: PlannedPool, promises: Promises, job: SchedulableJob, held: Schedule
) -> tuple[Schedule, dict[str, tuple[float, ...]]] | None:
    """Its schedule, and those of others that change; what it has is kept where no other is found."""
    proposal = pool.plan.propose(job)
    if proposal is not None:
        replanned = pool.changed_schedules()
        for row, schedule in list(proposal.schedules.items())[:-1]:
            replanned[pool.plan.table.job_ids[row]] = flat(schedule)
        return proposal.schedule, replanned
    if held and promises.plan.keeps(job, held):
        return held, promises.news()
    return None


def _offer(
    state: PoolState,
    pool: PlannedPool,
    promises: Promises,
    job: SchedulableJob,
    terms: _Terms,
    known: Job,
) -> Offer | None:
    """The earliest deadline with which it would be granted."""
    earliest_s = pool.plan.earliest_deadline_s(job)
    if earliest_s is not None:
        earliest_s = promises.first_worth_s(job, earliest_s, 1.0)
    if earliest_s is None:
        return None
    return Offer(
        deadline_s=earliest_s + state.config.deadline_slack_s,
        max_iterations=terms.max_iterations,
        global_batch_size=spec_of(known).global_batch_size,
    )


def _why_not(job: SchedulableJob, dear: bool, offer: Offer | None, now_s: float) -> str:
    left, window_s = job.remaining_iterations, job.deadline_s - now_s
    cannot = "would crowd out more than it is worth" if dear else "cannot be kept beside the other promises"
    offered = f"one in {offer.deadline_s - now_s:.0f} s would do" if offer else "no deadline would do"
    return f"{left:.0f} iterations more in {window_s:.0f} s: that {cannot}; {offered}; the promise of before stays"
