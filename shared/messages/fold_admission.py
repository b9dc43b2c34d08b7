"""The fold of what admission and the operator say. Part of `lifecycle`."""

from dataclasses import replace

from shared.messages import events
from shared.messages.fold_jobs import all_stopping, ended, scheduling_event, with_job
from shared.messages.pool_state import Job, MeasuredCurve, Phase, PoolState, Usage

DAY_S = 86_400.0
_NO_CURVE = MeasuredCurve(iterations_per_s={})


def configured(state: PoolState, event: events.PoolConfigured, sequence: int) -> PoolState:
    curves = state.curves
    for profile_key, table in event.config.curves.items():
        known = curves.get(profile_key, _NO_CURVE)
        at_s = {num_gpus: max(event.at_s, known.measured_at_s.get(num_gpus, 0.0)) for num_gpus in table}
        at_s = {**known.measured_at_s, **at_s}
        curve = replace(known, iterations_per_s=table, measured_at_s=at_s, complete=True)
        curves = curves.set(profile_key, curve)
    state = replace(state, config=event.config, configured=True, curves=curves)
    return scheduling_event(state, sequence)


def accepted(
    state: PoolState, event: events.ProfileRequested | events.JobAdmitted, sequence: int
) -> PoolState:
    known = state.job(event.job_id)
    profiling = isinstance(event, events.ProfileRequested)
    if known is not None and (profiling or known.phase is not Phase.PROFILING):
        return state
    job = Job(
        job_id=event.job_id,
        tenant=event.tenant,
        spec=event.spec,
        phase=Phase.PROFILING if profiling else Phase.ADMITTED,
        decided_at_s=event.at_s,
        decided_sequence=sequence,
        deadline_s=event.deadline_s,
        minimum_satisfactory_share=() if profiling else event.minimum_satisfactory_share,
        planned_share=() if profiling else event.minimum_satisfactory_share,
    )
    if known is not None:  # the pre-run's workers, if any are left, are fenced like any older generation
        job = replace(
            job,
            num_gpus=known.num_gpus,
            generation=known.generation,
            gpus=known.gpus,
            placed_at_s=known.placed_at_s,
            stopping=known.stopping,
            broken=bool(known.gpus),
        )
    if not profiling:
        state = charge(made_room(state, event), event)
    return scheduling_event(with_job(state, job), sequence)


def made_room(state: PoolState, event: events.JobAdmitted) -> PoolState:
    for job_id, schedule in event.replanned.items():
        other = state.live_jobs.get(job_id)
        if other is not None:
            state = with_job(state, replace(other, planned_share=schedule))
    return state


def charge(state: PoolState, event: events.JobAdmitted) -> PoolState:
    recent = [u for u in state.usage.get(event.tenant, ()) if u.at_s > event.at_s - DAY_S]
    usage = (*recent, Usage(at_s=event.at_s, gpu_seconds=event.gpu_seconds))
    return replace(state, usage=state.usage.set(event.tenant, usage))


def rejected(state: PoolState, event: events.JobRejected, sequence: int) -> PoolState:
    known = state.job(event.job_id)
    if event.reason == "duplicate" or (known is not None and known.phase is not Phase.PROFILING):
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
        stopping=all_stopping(state, known) if known else (),
        rejection=event.reason,
    )
    after = ended(state, job, Phase.REJECTED, event.at_s, sequence, explanation=event.explanation)
    if known is not None:
        return after
    # One who never came in frees nothing: the allocator need not look.
    return replace(after, scheduling_event_sequence=state.scheduling_event_sequence)
