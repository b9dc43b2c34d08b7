"""The fold of what admission and the operator say. Part of `lifecycle`."""

from dataclasses import replace

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.commands import ProfileJob, SubmitJob
from shared.messages.fold_curves import configured_curves, with_range
from shared.messages.fold_jobs import all_stopping, ended, scheduling_event, with_job
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import HeldQuote, PoolState, Usage, spec_of

MAX_CHARGES = 1_440  # of one tenant within its longest window, and one more


def configured(state: PoolState, event: events.PoolConfigured, sequence: int) -> PoolState:
    state = changed(configured_curves(state, event), config=event.config, configured=True)
    return scheduling_event(state, sequence)


def accepted(
    state: PoolState, event: events.ProfileRequested | events.JobAdmitted, sequence: int
) -> PoolState:
    known = state.job(event.job_id)
    profiling = isinstance(event, events.ProfileRequested)
    waits = known is not None and known.phase is Phase.PROFILING and not profiling
    if known is not None and not waits and not is_anew(known, event):
        return state
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        phase=Phase.PROFILING if profiling else Phase.ADMITTED,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        deadline_s=event.deadline_s,
        least_gpu_seconds=0.0 if isinstance(event, events.ProfileRequested) else event.least_gpu_seconds,
        only_measured=isinstance(event, events.ProfileRequested) and event.only_measured,
        minimum_satisfactory_share=() if profiling else event.minimum_satisfactory_share,
        planned_share=() if profiling else event.minimum_satisfactory_share,
    )
    if known is not None:  # workers of a pre-run, if any are left, are fenced like any older generation
        job = changed(
            job,
            num_gpus=known.num_gpus,
            generation=known.generation,
            gpus=known.gpus,
            placed_at_s=known.placed_at_s,
            stopping=known.stopping,
            broken=bool(known.gpus),
        )
    if not profiling:
        used = Usage(at_s=event.at_s, gpu_seconds=event.gpu_seconds)
        state = charge(made_room(without_quote(state, event.job_id), event), event.tenant, used)
        state = asked_for(state, event)
    if known is not None and not known.live:
        state = changed(state, ended_jobs=state.ended_jobs.delete(event.job_id))
    if (known is None or not known.live) and event.job_id in state.num_gpus_by_job:
        state = without_share(state, event.job_id)
    return scheduling_event(with_job(with_range(state, event.spec), job), sequence)


def is_anew(
    known: Job,
    wish: SubmitJob | ProfileJob | events.ProfileRequested | events.JobAdmitted | events.JobRejected,
) -> bool:
    """A rejection is an end: another wish may come under the same name, and is judged anew."""
    return known.phase is Phase.REJECTED and (known.spec, known.tenant) != (wish.spec, wish.tenant)


def without_share(state: PoolState, job_id: str) -> PoolState:
    """What the last allocation gave to this name was for another wish: the pre-run of one that was rejected."""
    shares = {name: num_gpus for name, num_gpus in state.num_gpus_by_job.items() if name != job_id}
    return changed(state, num_gpus_by_job=shares)


def quote_held(state: PoolState, event: events.QuoteHeld, sequence: int) -> PoolState:
    """Those that are over go, so that no more are kept than were asked for within the longest hold."""
    quote = HeldQuote(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        deadline_s=event.deadline_s,
        schedule=event.schedule,
        gpu_seconds=event.gpu_seconds,
        at_s=event.at_s,
        until_s=event.until_s,
    )
    quotes = state.held_quotes
    for job_id, other in state.held_quotes.items():
        if other.until_s <= event.at_s:
            quotes = quotes.delete(job_id)
    state = with_range(made_room(state, event), event.spec)
    state = changed(state, held_quotes=quotes.set(event.job_id, quote))
    return scheduling_event(state, sequence)


def without_quote(state: PoolState, job_id: str) -> PoolState:
    """The quote was taken: from now on its schedule is the job's."""
    if job_id not in state.held_quotes:
        return state
    return changed(state, held_quotes=state.held_quotes.delete(job_id))


def amended(state: PoolState, job: Job, event: events.JobAmended, sequence: int) -> PoolState:
    """Workers that train by then learn of other iterations in their next generation, which is due at once."""
    if job.phase is not Phase.ADMITTED:
        return state
    spec = spec_of(job)
    if event.max_iterations != spec.max_iterations:
        job = changed(
            job,
            spec=replace(spec, max_iterations=event.max_iterations),
            submitted=job.submitted or spec,
            outdated=bool(job.gpus),
        )
    job = changed(
        job,
        deadline_s=event.deadline_s,
        minimum_satisfactory_share=event.minimum_satisfactory_share,
        planned_share=event.minimum_satisfactory_share,
        at_risk=False,
        earliest_deadline_s=None,
    )
    used = Usage(at_s=event.at_s, gpu_seconds=event.gpu_seconds, num_jobs=0)
    state = charge(made_room(state, event), job.tenant, used)
    return scheduling_event(with_job(state, job), sequence)


def made_room(
    state: PoolState, event: events.JobAdmitted | events.QuoteHeld | events.JobAmended | events.JobScaled
) -> PoolState:
    if not event.replanned:
        return state
    live_jobs = state.live_jobs.mutate()
    for job_id, schedule in event.replanned.items():
        other = live_jobs.get(job_id)
        if other is not None:
            live_jobs[job_id] = changed(other, planned_share=schedule)
    return changed(state, live_jobs=live_jobs.finish())


def charge(state: PoolState, tenant: str, newest: Usage) -> PoolState:
    """Promises count together, as of the last of them, that come in one minute, or where the tenant has a window longer
    than a day, within as much more: 1,441 entries at most, at any rate."""
    window_s = state.config.quota(tenant).longest_window_s
    together_s = window_s / MAX_CHARGES
    usage = state.usage.get(tenant, ())
    num_old = next((n for n, used in enumerate(usage) if used.at_s > newest.at_s - window_s), len(usage))
    if usage and newest.at_s // together_s <= usage[-1].at_s // together_s:
        last = usage[-1]
        newest = Usage(
            at_s=max(last.at_s, newest.at_s),
            gpu_seconds=last.gpu_seconds + newest.gpu_seconds,
            num_jobs=last.num_jobs + newest.num_jobs,
        )
        usage = usage[:-1]
    return changed(state, usage=state.usage.set(tenant, (*usage[num_old:], newest)))


def asked_for(state: PoolState, event: events.JobAdmitted | events.JobRejected) -> PoolState:
    if not event.least_gpu_seconds:
        return state
    return changed(state, demand=state.demand.added(event.at_s, event.least_gpu_seconds))


def rejected(state: PoolState, event: events.JobRejected, sequence: int) -> PoolState:
    known = state.job(event.job_id)
    if event.reason == "duplicate":
        return state
    if known is not None and known.phase is not Phase.PROFILING and not is_anew(known, event):
        return state
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        phase=Phase.PROFILING,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        deadline_s=event.deadline_s,
        generation=known.generation if known else 0,
        earliest_deadline_s=event.earliest_deadline_s,
        offers=event.offers,
        least_gpu_seconds=event.least_gpu_seconds,
        stopping=all_stopping(state, known) if known else (),
        rejection=event.reason,
    )
    state = asked_for(state, event)
    after = ended(state, job, Phase.REJECTED, event.at_s, sequence, explanation=event.explanation)
    if known is not None and known.live:
        return after
    # One who never came in frees nothing: the allocator need not look.
    return changed(after, scheduling_event_sequence=state.scheduling_event_sequence)
