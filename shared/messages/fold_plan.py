"""The fold of allocations, placements and throughput profiles. Part of `lifecycle`."""

from dataclasses import replace

from shared.messages import events
from shared.messages.fold_jobs import alive, all_stopping, scheduling_event, with_job
from shared.messages.pool_state import MeasuredCurve, PoolState

_NO_CURVE = MeasuredCurve(iterations_per_s={})


def allocated(state: PoolState, event: events.AllocationDecided) -> PoolState:
    live_jobs = state.live_jobs
    for job_id, job in live_jobs.items():
        num_gpus = event.num_gpus_by_job.get(job_id, 0)
        planned = event.planned.get(job_id, job.planned_share)
        if num_gpus != job.num_gpus or planned != job.planned_share:
            live_jobs = live_jobs.set(job_id, replace(job, num_gpus=num_gpus, planned_share=planned))
    return replace(state, live_jobs=live_jobs, allocation_valid_until_s=event.valid_until_s)


def placed(state: PoolState, placement: events.PlacedJob, at_s: float) -> PoolState:
    job = state.live_jobs.get(placement.job_id)
    if job is None or placement.generation <= job.generation:
        return state
    job = replace(
        job,
        stopping=all_stopping(state, job),
        generation=placement.generation,
        gpus=placement.gpus,
        placed_at_s=at_s,
        started_at_s=None,
        broken=not all(alive(state, gpu.node_id) for gpu in placement.gpus),  # lost while this was decided
        rendezvous="",
        iterations_per_s=None,
        at_risk=False,
    )
    return with_job(state, job)


def measured(state: PoolState, event: events.ThroughputMeasured, sequence: int) -> PoolState:
    curve = state.curves.get(event.profile_key, _NO_CURVE)
    if event.at_s <= curve.measured_at_s.get(event.num_gpus, -1.0):
        return state
    curve = replace(
        curve,
        iterations_per_s={**curve.iterations_per_s, event.num_gpus: event.iterations_per_s},
        measured_at_s={**curve.measured_at_s, event.num_gpus: event.at_s},
        dataset_size=curve.dataset_size if event.dataset_size is None else event.dataset_size,
    )
    state = replace(state, curves=state.curves.set(event.profile_key, curve))
    return scheduling_event(state, sequence)


def profile_completed(state: PoolState, event: events.ProfileCompleted) -> PoolState:
    """No scheduling event: the allocator says it together with an allocation that knows it."""
    curve = state.curves.get(event.profile_key, _NO_CURVE)
    curve = replace(curve, iterations_per_s=event.iterations_per_s, complete=True)
    return replace(state, curves=state.curves.set(event.profile_key, curve))
