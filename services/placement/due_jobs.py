"""Which jobs are placed anew: those whose GPUs differ from the allocation, and those whose workers broke. Pure.

A job whose workers are switching keeps its GPUs for a while; its later shares merge into one.
"""
# pyright: strict

from collections import Counter
from collections.abc import Mapping

from elasticflow.services.placement.allocated_mix import (
    allocated_mix,
    allocated_of_others,
    held_of_others,
)
from elasticflow.services.placement.shrink_to_survivors import counted_gpus, waits_to_shrink
from elasticflow.shared.state.gpu_types import num_gpus_by_recorded_type
from elasticflow.shared.state.job import Job, nodes_of
from elasticflow.shared.state.placed_mix import placed_mix, recorded_type
from elasticflow.shared.state.pool import PoolState, spec_of

MAX_SWITCH_S = 2.0  # from a placement: another share does not interrupt the workers' switch before


def allocated_shares(state: PoolState) -> dict[str, int]:
    """GPUs of its own type that each job is to hold."""
    return {
        job.job_id: job.num_gpus if job.gpus or _is_allocated(state, job) else 0 for job in state.live_jobs.values()
    }


def exceeds_pool(state: PoolState, shares: Mapping[str, int]) -> bool:
    """Whether the allocation names more GPUs of a type than there are: the allocator does not know of a loss yet."""
    if len(state.gpu_types) <= 1:
        return sum(shares.values()) > state.num_gpus
    wanted = Counter[str]()
    for job in state.live_jobs.values():
        wanted[spec_of(job).gpu_type] += shares[job.job_id]
        wanted.update(_num_added(state, job))
    num_gpus = num_gpus_by_recorded_type(state)
    return any(count > num_gpus[gpu_type] for gpu_type, count in wanted.items())


def due_jobs(state: PoolState, shares: Mapping[str, int], now_s: float) -> set[str]:
    """Jobs to place anew.

    While the workers of a job switch, or train on the type that it leaves, other jobs get the GPUs that are free
    beside it, and jobs that give GPUs back come first.
    """
    live = state.live_jobs.values()
    due = [job for job in live if _is_due(state, job, shares[job.job_id])]
    now = [job for job in due if not _is_switching_undisturbed(job, now_s)]
    if len(now) == len(due) and not any(_waits_for_other_type(state, job) for job in live):
        return {job.job_id for job in due}
    placed, free = set[str](), _num_free(state)
    more_by_job = {job.job_id: _more(state, job, shares[job.job_id]) for job in now}
    for job_id in sorted(more_by_job, key=lambda job_id: (more_by_job[job_id].total(), job_id)):
        if all(more <= max(free[gpu_type], 0) for gpu_type, more in more_by_job[job_id].items()):
            placed.add(job_id)
            free.subtract(more_by_job[job_id])
    return placed


def _is_due(state: PoolState, job: Job, num_gpus: int) -> bool:
    if _waits_for_other_type(state, job):
        return False
    is_outdated = (job.broken or job.has_outdated_spec) and bool(job.gpus)
    if is_outdated or (state.draining and not state.draining.isdisjoint(nodes_of(job.gpus))):
        return True
    if len(job.gpus) - job.num_added_gpus != num_gpus:
        return True
    may_be_mixed = job.num_added_gpus > 0 or job.job_id in state.virtual_nodes_by_type
    return may_be_mixed and placed_mix(state, job) != allocated_mix(state, job)


def _waits_for_other_type(state: PoolState, job: Job) -> bool:
    """Whether its GPU type has changed and the allocator does not know yet. Until then its workers train."""
    return not job.num_gpus and bool(job.gpus) and not job.own_gpus and not _is_allocated(state, job)


def _is_switching_undisturbed(job: Job, now_s: float) -> bool:
    if not job.is_switching or job.has_outdated_spec:
        return False
    return now_s < job.placed_at_s + MAX_SWITCH_S or waits_to_shrink(job)


def _is_allocated(state: PoolState, job: Job) -> bool:
    """Whether the last allocation counted the job as it is; until then it may hold the GPUs of its profiling run, or
    those of the type that it leaves."""
    return job.decided_sequence <= state.allocation_based_on


def _num_free(state: PoolState) -> Counter[str]:
    """GPUs by type that no job holds."""
    free = Counter(num_gpus_by_recorded_type(state))
    for job in state.live_jobs.values():
        free[spec_of(job).gpu_type] -= len(counted_gpus(state, job))
        if job.num_added_gpus:
            free.subtract(_held_of_others(state, job))
    return free


def _more(state: PoolState, job: Job, num_gpus: int) -> Counter[str]:
    """GPUs by type that the allocation gives a job beside those that it holds; negative where it takes some back."""
    more = _num_added(state, job)
    more.subtract(_held_of_others(state, job))
    more[spec_of(job).gpu_type] += num_gpus - len(counted_gpus(state, job))
    return more


def _num_added(state: PoolState, job: Job) -> Counter[str]:
    """GPUs of other types that join the job, by type."""
    return Counter({gpu_type: len(counts) for gpu_type, counts in allocated_of_others(state, job).items()})


def _held_of_others(state: PoolState, job: Job) -> Counter[str]:
    return Counter(recorded_type(state, gpu) for gpu in held_of_others(state, job))
