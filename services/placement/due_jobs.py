"""The jobs that are placed anew: those whose GPUs differ from the allocation, and those whose workers broke. Pure.

A job whose workers are switching keeps its GPUs for a while; its later shares merge into one.
"""

# pyright: strict

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.scheduler_view import separate_gpus
from elasticflow.shared.state.fold.jobs import alive, takes_jobs
from elasticflow.shared.state.gpu_types import num_gpus_by_recorded_type, placed_mix, recorded_type
from elasticflow.shared.state.job import Job, Phase, nodes_of
from elasticflow.shared.state.pool import PoolState, slow_gpu, slow_gpus_at, slow_until_s, spec_of

# --- allocated mix -------------------------------------------------------------------------------------
# The virtual nodes of a job on GPUs of several types, as allocated. Pure (docs/adr/0049).


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


# --- new generation ------------------------------------------------------------------------------------
# The next generation of a job on given GPUs, and how many virtual nodes each of them computes. Pure.


def new_generation(job: Job, gpus: tuple[GpuId, ...]) -> PlacedJob:
    """Its virtual nodes are divided as evenly as possible, whatever the present generation has (docs/adr/0046).

    The job may have lost GPUs, or an amendment may have changed its batch, so present counts may not fit it any more.
    """
    return PlacedJob(job_id=job.job_id, generation=job.generation + 1, gpus=gpus)


def mixed_generation(state: PoolState, job: Job, own: tuple[GpuId, ...], added: tuple[GpuId, ...]) -> PlacedJob:
    """Its virtual nodes are divided as the allocation says (docs/adr/0049).

    own: the job's share. added: GPUs of other types, in the order of `allocated_mix`.
    """
    return PlacedJob(
        job_id=job.job_id,
        generation=job.generation + 1,
        gpus=(*own, *added),
        virtual_nodes_by_rank=tuple(chain.from_iterable(allocated_mix(state, job).values())),
        num_added_gpus=len(added),
    )


def relieving_generation(
    job: Job, gpus: tuple[GpuId, ...], counts: tuple[int, ...], predicted_speedup: float
) -> PlacedJob:
    """Slow GPUs of its share have fewer virtual nodes, or are left out and stay reserved (docs/adr/0109)."""
    return replace(new_generation(job, gpus), virtual_nodes_by_rank=counts, predicted_speedup=predicted_speedup)


# --- shrink to survivors -------------------------------------------------------------------------------
# Survivors of a loss train on without the lost workers, and replacements join later (docs/adr/0025).
#
# The survivors of a broken generation form a generation of their own. No worker has to start for it, so it trains as
# soon as the rendezvous is complete. Until the share is complete again, placement counts all of the job's reserved
# GPUs as its own.


def shrunk_to_survivors(state: PoolState) -> Iterator[PlacedJob]:
    """A generation of the survivors on their GPUs, for each job whose workers wait after a loss."""
    broken = [job for job in state.live_jobs.values() if job.broken]
    for job in sorted(broken, key=lambda job: job.job_id):
        remaining = _remaining(job)
        if remaining and all(alive(state, gpu.node_id) for gpu in remaining):  # none is awaited
            num_added = len(remaining) if remaining[0] in job.added_gpus else 0
            yield replace(new_generation(job, remaining), num_added_gpus=num_added)


def _remaining(job: Job) -> tuple[GpuId, ...]:
    """GPUs of the job's share on which a worker holds its state, in rank order; GPUs of other types if there is none.

    Even parts would make the others wait for the slower type. No GPUs if the share is smaller, or if the job cannot
    run on so few: then it is placed like any other. A leaving worker's GPU is not among them, because it belongs to
    another job by now.
    """
    before = job.previous_generation
    if before is None or before.trains or job.has_outdated_spec:
        return ()
    surviving = set(before.surviving)
    own = tuple(gpu for gpu in job.own_gpus if gpu in surviving)
    gpus = own or tuple(gpu for gpu in job.added_gpus if gpu in surviving)
    return gpus if spec_of(job).gpu_range.least <= len(gpus) <= job.num_gpus else ()


def waits_to_shrink(job: Job) -> bool:
    """Whether workers will join as soon as the survivors train: placing the job before that gains nothing."""
    return job.shrinks_to_survivors and job.num_gpus > len(job.own_gpus)


def counted_gpus(state: PoolState, job: Job) -> tuple[GpuId, ...]:
    """The GPUs that count as the job's share and are on nodes that take jobs."""
    if not job.reserved_gpus and not job.broken and not state.draining:
        return job.own_gpus
    return tuple(gpu for gpu in job.reserved_gpus or job.own_gpus if takes_jobs(state, gpu.node_id))


# --- given up ------------------------------------------------------------------------------------------
# The GPUs that operators have taken from a job by name (docs/adr/0109).


def given_up_gpus(state: PoolState, job_id: str) -> tuple[GpuId, ...]:
    """Those that the job has given up for as long as its GPU limits last."""
    limits = state.gpu_limits.get(job_id)
    return limits.without_gpus if limits is not None else ()


def remaining_gpus(held: tuple[GpuId, ...], given_up: Collection[GpuId], num_gpus: int) -> tuple[GpuId, ...]:
    """What a job keeps of its GPUs: all others if it is to hold as many or more, else so many on the fullest nodes."""
    others = [gpu for gpu in held if gpu not in given_up]
    per_node = Counter(gpu.node_id for gpu in others)
    fullest_first = sorted(others, key=lambda gpu: (-per_node[gpu.node_id], gpu.node_id))
    kept = set(fullest_first[:num_gpus] if num_gpus else others)
    return tuple(gpu for gpu in others if gpu in kept)


# --- due jobs ------------------------------------------------------------------------------------------

MAX_SWITCH_S = 2.0  # from a placement: another share does not interrupt the workers' switch before


def has_gangs(job: Job) -> bool:
    """Whether each of its replicas has several GPUs, which must be on one node."""
    return spec_of(job).gpus_per_replica > 1


def waits_for_replicas(job: Job) -> bool:
    """Whether it may go on being due without a decision: until GPUs of one node are free for another replica."""
    return has_gangs(job) and len(job.gpus) < job.num_gpus and not job.broken and not job.has_outdated_spec


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
    slow = slow_gpus_at(state, now_s) if any(job.predicted_speedup for job in live) else {}
    due = [job for job in live if _is_due(state, job, shares[job.job_id], slow)]
    now = [job for job in due if not is_switching_undisturbed(job, now_s)]
    if len(now) == len(due) and not any(_waits_for_other_type(state, job) for job in live):
        return {job.job_id for job in due}
    placed, free = set[str](), _num_free(state)
    more_by_job = {job.job_id: _more(state, job, shares[job.job_id]) for job in now}
    for job_id in sorted(more_by_job, key=lambda job_id: (more_by_job[job_id].total(), job_id)):
        if all(more <= max(free[gpu_type], 0) for gpu_type, more in more_by_job[job_id].items()):
            placed.add(job_id)
            free.subtract(more_by_job[job_id])
    return placed


def relieved_until_s(state: PoolState) -> set[float]:
    """When GPUs no longer count as slow that jobs relieve."""
    relieved = [gpu for job in state.live_jobs.values() if job.predicted_speedup for gpu in job.share_gpus]
    return {slow_until_s(state, slow) for gpu in relieved if (slow := slow_gpu(state, gpu)) is not None}


def _is_due(state: PoolState, job: Job, num_gpus: int, slow: Collection[GpuId]) -> bool:
    if _waits_for_other_type(state, job):
        return False
    is_outdated = (job.broken or job.has_outdated_spec or shows_lost_gpus(state, job)) and bool(job.gpus)
    if is_outdated or (state.draining and not state.draining.isdisjoint(nodes_of(job.gpus))):
        return True
    if job.predicted_speedup:  # slow GPUs take part as before once none counts as slow
        return len(counted_gpus(state, job)) != num_gpus or not any(gpu in slow for gpu in job.share_gpus)
    if len(job.gpus) - job.num_added_gpus != num_gpus:
        return True
    may_be_mixed = job.num_added_gpus > 0 or job.job_id in state.virtual_nodes_by_type
    return may_be_mixed and placed_mix(state, job) != allocated_mix(state, job)


def shows_lost_gpus(state: PoolState, job: Job) -> bool:
    """Whether its workers see GPUs of their node that it has no more, and others may get (docs/adr/0115)."""
    if not separate_gpus(state.nodes) or not job.shown_gpus:
        return False
    own, nodes = {*job.gpus, *job.reserved_gpus}, set(nodes_of(job.gpus))
    lost = (gpu.node_id for gpu in job.shown_gpus if gpu not in own and gpu.node_id in nodes)
    return any(state.nodes[node_id].separates_gpus for node_id in lost)


def _waits_for_other_type(state: PoolState, job: Job) -> bool:
    """Whether its GPU type has changed and the allocator does not know yet. Until then its workers train."""
    return not job.num_gpus and bool(job.gpus) and not job.own_gpus and not _is_allocated(state, job)


def is_switching_undisturbed(job: Job, now_s: float) -> bool:
    """Whether the workers of a job switch, and no other share interrupts them yet."""
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
