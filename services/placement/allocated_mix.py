"""The virtual nodes of a job on GPUs of several types, as allocated. Pure (docs/adr/0049)."""
# pyright: strict

from collections.abc import Mapping

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.fold.jobs import takes_jobs
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of


def allocated_mix(state: PoolState, job: Job) -> Mapping[str, tuple[int, ...]]:
    """The virtual nodes of each of its GPUs by recorded type, its own type first; empty if it has one type only."""
    if job.job_id not in state.virtual_nodes_by_type:
        return {}
    counts, own = state.virtual_nodes_by_type[job.job_id], spec_of(job).gpu_type
    fits = len(counts.get(own, ())) == job.num_gpus > 0 and any(map(any, counts.values()))
    if job.phase is not Phase.ADMITTED or not fits or not any(counts[other] for other in counts if other != own):
        return {}
    return {own: counts[own], **{other: counts[other] for other in sorted(counts) if other != own and counts[other]}}


def allocated_of_others(state: PoolState, job: Job) -> dict[str, tuple[int, ...]]:
    """The part of `allocated_mix` on other types than the job's own."""
    own = spec_of(job).gpu_type
    return {gpu_type: counts for gpu_type, counts in allocated_mix(state, job).items() if gpu_type != own}


def held_of_others(state: PoolState, job: Job) -> tuple[GpuId, ...]:
    """Its GPUs of other types on nodes that take jobs, in rank order."""
    return tuple(gpu for gpu in job.added_gpus if takes_jobs(state, gpu.node_id))
