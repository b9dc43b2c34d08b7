"""The fold of operators' GPU limits. Part of `ledger_fold`.

Limits narrow the range in the job's spec while they are in force, so that planning sees only a job with a range.
"""

from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.gpu_limits import GpuLimits, GpuRange
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.fold.admission import with_replanned, with_usage
from elasticflow.shared.state.fold.jobs import scheduling_event, with_job
from elasticflow.shared.state.fold.profiles import with_range
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, Usage, spec_of


def submitted_range(job: Job) -> GpuRange:
    """The range that the user gave."""
    return (job.submitted_spec or spec_of(job)).gpu_range


def with_gpu_range(job: Job, gpu_range: GpuRange) -> JobSpec:
    """The job's spec with this range."""
    return replace(spec_of(job), min_gpus=gpu_range.least, max_gpus=gpu_range.most)


def gpu_limits_set(state: PoolState, job: Job, event: events.GpuLimitsSet, sequence: int) -> PoolState:
    limits = GpuLimits(min_gpus=event.min_gpus, max_gpus=event.max_gpus, until_s=event.until_s)
    gpu_range = submitted_range(job).intersection(limits.gpu_range)
    if job.phase is not Phase.ADMITTED or gpu_range.is_empty:
        return state
    job = fast_replace(
        job,
        spec=with_gpu_range(job, gpu_range),
        submitted_spec=job.submitted_spec or spec_of(job),
        minimum_satisfactory_share=event.minimum_satisfactory_share,
        planned_share=event.minimum_satisfactory_share,
    )
    used = Usage(at_s=event.at_s, gpu_seconds=event.gpu_seconds, num_jobs=0)
    state = with_usage(with_replanned(state, event), job.tenant, used)
    state = fast_replace(with_range(state, spec_of(job)), gpu_limits=state.gpu_limits.set(job.job_id, limits))
    return scheduling_event(with_job(state, job), sequence)


def gpu_limits_cleared(state: PoolState, job: Job, sequence: int) -> PoolState:
    """Restore the user's range. The schedule stays: it keeps the promise with more sizes as well."""
    if job.job_id not in state.gpu_limits:
        return state
    spec = job.submitted_spec or spec_of(job)
    job = fast_replace(
        job,
        spec=replace(spec_of(job), min_gpus=spec.min_gpus, max_gpus=spec.max_gpus),
        at_risk=False,
        earliest_deadline_s=None,
    )
    state = fast_replace(state, gpu_limits=state.gpu_limits.delete(job.job_id))
    return scheduling_event(with_job(with_range(state, spec_of(job)), job), sequence)


def gpu_limits_yield(state: PoolState, event: events.JobAtRisk) -> PoolState:
    """A promise at risk takes precedence over the GPU limits of promised jobs: all of them expire now."""
    all_limits = state.gpu_limits
    for job_id, limits in state.gpu_limits.items():
        job = state.live_jobs.get(job_id)
        if job is not None and job.promised and not limits.yields_to:
            all_limits = all_limits.set(job_id, replace(limits, until_s=event.at_s, yields_to=event.job_id))
    return fast_replace(state, gpu_limits=all_limits)
