"""The fold of operators' bounds. Part of `lifecycle`.

A bound narrows the range of a job's spec for as long as it stands, so that whoever plans sees a job with a range.
"""

from dataclasses import replace

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.fold_admission import charge, made_room
from shared.messages.fold_curves import with_range
from shared.messages.fold_jobs import scheduling_event, with_job
from shared.messages.gpu_range import GpuBound, GpuRange
from shared.messages.job import JobSpec
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import PoolState, Usage, spec_of


def own_range(job: Job) -> GpuRange:
    """As its user gave it."""
    return (job.submitted or spec_of(job)).gpu_range


def bounded(job: Job, gpu_range: GpuRange) -> JobSpec:
    """Its spec with this range."""
    return replace(spec_of(job), min_gpus=gpu_range.least, max_gpus=gpu_range.most)


def scaled(state: PoolState, job: Job, event: events.JobScaled, sequence: int) -> PoolState:
    bound = GpuBound(min_gpus=event.min_gpus, max_gpus=event.max_gpus, until_s=event.until_s)
    gpu_range = own_range(job).and_within(bound.gpu_range)
    if job.phase is not Phase.ADMITTED or gpu_range.is_empty:
        return state
    job = changed(
        job,
        spec=bounded(job, gpu_range),
        submitted=job.submitted or spec_of(job),
        minimum_satisfactory_share=event.minimum_satisfactory_share,
        planned_share=event.minimum_satisfactory_share,
    )
    used = Usage(at_s=event.at_s, gpu_seconds=event.gpu_seconds, num_jobs=0)
    state = charge(made_room(state, event), job.tenant, used)
    state = changed(with_range(state, spec_of(job)), bounds=state.bounds.set(job.job_id, bound))
    return scheduling_event(with_job(state, job), sequence)


def bound_ended(state: PoolState, job: Job, sequence: int) -> PoolState:
    """The schedule stays: what kept the promise on fewer sizes keeps it on more."""
    if job.job_id not in state.bounds:
        return state
    spec = job.submitted or spec_of(job)
    job = changed(
        job,
        spec=replace(spec_of(job), min_gpus=spec.min_gpus, max_gpus=spec.max_gpus),
        at_risk=False,
        earliest_deadline_s=None,
    )
    state = changed(state, bounds=state.bounds.delete(job.job_id))
    return scheduling_event(with_job(with_range(state, spec_of(job)), job), sequence)


def bounds_yield(state: PoolState, event: events.JobAtRisk) -> PoolState:
    """A promise at risk comes before what operators want of promised jobs: their bounds are over, as of now."""
    bounds = state.bounds
    for job_id, bound in state.bounds.items():
        job = state.live_jobs.get(job_id)
        if job is not None and job.promised and not bound.yields_to:
            bounds = bounds.set(job_id, replace(bound, until_s=event.at_s, yields_to=event.job_id))
    return changed(state, bounds=bounds)
