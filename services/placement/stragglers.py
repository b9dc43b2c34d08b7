"""A straggler, a worker that delays its peers, gets another GPU. If none is free, the job goes on with fewer virtual
nodes on its GPU, or without it, where that is faster (docs/adr/0109).

The change costs a job that switches without stopping some milliseconds. So a promised job takes part too; its number
of GPUs stays, and a GPU that it leaves out stays reserved for it. Where workers would have to stop, the slow GPU is
only reported. A job that is placed anew gets other GPUs if these are connected as well
(shared/scheduling/placement/buddy_blocks.py).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from elasticflow.services.placement.due_jobs import given_up_gpus, new_generation, relieving_generation
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.heterogeneous.straggler_division import DividedSteps, Division, one_gpu_of
from elasticflow.shared.state.gpu_types import submitted_spec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, SlowGpu, rack_of, slow_gpus_at, slow_until_s, spec_of

SETTLED_S = 60.0  # on its GPUs before a job is placed for a straggler, because the cause may move with the job
LEAST_GAIN = 0.05  # in steps per second: less is not worth a switch, and may be an error of the slowdown


def without_delay(state: PoolState, part: PoolState, now_s: float, held: Iterable[Job]) -> Iterator[PlacedJob]:
    """A generation for each job that slow GPUs delay: with these replaced by the nearest free ones, or relieved.

    part: of the pool, of one type. held: the jobs of all types, whose GPUs are not free. A job with GPUs of other types
    is left as it is: the allocator decides what they are worth to it.
    """
    slow = slow_gpus_at(part, now_s)
    if not slow or not state.config.stop_free:
        return
    free = _free(part, held) - slow.keys()
    for job in sorted(part.live_jobs.values(), key=lambda job: job.job_id):
        delayed_by = {gpu: slow[gpu] for gpu in job.share_gpus if gpu in slow and slow[gpu].job_id == job.job_id}
        if not delayed_by or not _may_change(job, now_s):
            continue
        other = free.difference(given_up_gpus(state, job.job_id))
        # with even parts, a job that has relieved all its slow GPUs would wait again for those not replaced
        if other and (not job.predicted_speedup or len(other) >= len(delayed_by)):
            yield new_generation(job, _replaced(part, job, delayed_by, other))
        elif (relieved := _relieved(state, job, delayed_by)) is not None:
            yield relieved


def next_change_s(state: PoolState, part: PoolState, held: Collection[Job]) -> float | None:
    """When the first job is placed for a straggler although no event comes. Arguments: as of `without_delay`."""
    slow = {GpuId(node.node_id, each.gpu_index): each for node in part.nodes.values() for each in node.slow_gpus}
    delayed = [job for job in part.live_jobs.values() if not slow.keys().isdisjoint(job.share_gpus)] if slow else []
    if not delayed:
        return None
    settled_s = {job.placed_at_s + SETTLED_S for job in delayed}
    expire_s = {slow_until_s(part, slow[gpu]) for job in delayed for gpu in job.share_gpus if gpu in slow}
    decided_s = _decided_until_s(state)
    due_s = sorted(at_s for at_s in settled_s | expire_s if at_s > decided_s)
    return next((at_s for at_s in due_s if any(without_delay(state, part, at_s, held))), None)


def _decided_until_s(state: PoolState) -> float:
    """An instant until which decisions have been taken: the time of an event that can free GPUs, or of a later one.

    What was possible before and is not any more must not wake the service.
    """
    live, nodes = state.live_jobs.values(), state.nodes.values()
    jobs_s = (max(job.placed_at_s, job.progressed_at_s, job.started_at_s or 0.0) for job in live)
    ended_s = (job.ended_at_s or 0.0 for job in state.ended_jobs.values())
    nodes_s = (max(node.since_s, *(slow.since_s for slow in node.slow_gpus), 0.0) for node in nodes)
    return max(*jobs_s, *ended_s, *nodes_s, 0.0)


def _may_change(job: Job, now_s: float) -> bool:
    trains = job.training and job.phase is Phase.ADMITTED and not job.has_outdated_spec and not job.stopping
    is_complete = len(job.share_gpus) == job.num_gpus and not job.num_added_gpus
    return trains and is_complete and not job.keeps_its_blocks and now_s >= job.placed_at_s + SETTLED_S


def _replaced(
    part: PoolState, job: Job, delayed_by: Mapping[GpuId, SlowGpu], free: Collection[GpuId]
) -> tuple[GpuId, ...]:
    """The share of a job with as many of its slow GPUs replaced as others are free, the slowest first."""
    other_by_slow, left = dict[GpuId, GpuId](), set(free)
    slowest_first = sorted(delayed_by, key=lambda gpu: (-delayed_by[gpu].slowdown, gpu))
    for slow in slowest_first[: len(left)]:
        other_by_slow[slow] = min(left, key=lambda gpu: (*_distance(part, slow, gpu), gpu))
        left.discard(other_by_slow[slow])
    return tuple(other_by_slow.get(gpu, gpu) for gpu in job.share_gpus)


def _relieved(state: PoolState, job: Job, delayed_by: Mapping[GpuId, SlowGpu]) -> PlacedJob | None:
    """The generation of the fastest division of its virtual nodes; None if the present one is as fast.

    state: with all types.
    """
    share, spec = job.share_gpus, spec_of(job)
    num_virtual_nodes = max(each.num_virtual_nodes for each in delayed_by.values())
    steps = DividedSteps(
        slowdowns=tuple(max(delayed_by[gpu].slowdown, 1.0) if gpu in delayed_by else 1.0 for gpu in share),
        one_gpu=one_gpu_of(state, submitted_spec(job), spec.gpu_type, num_virtual_nodes),
        least_gpus=spec.gpu_range.least,
    )
    used = tuple(index for index, gpu in enumerate(share) if gpu in job.gpus)
    present, fastest = Division(used=used, counts=job.virtual_nodes_by_rank), steps.fastest()
    fastest_s = steps.step_s(fastest)
    if steps.step_s(present) <= fastest_s * (1.0 + LEAST_GAIN):
        return None
    if fastest == steps.even:
        return new_generation(job, share)
    gpus = tuple(share[index] for index in fastest.used)
    return relieving_generation(job, gpus, fastest.counts, steps.step_s(steps.even) / fastest_s)


def _free(part: PoolState, held: Iterable[Job]) -> set[GpuId]:
    gpus = {
        GpuId(node.node_id, index) for node in part.nodes.values() if node.takes_jobs for index in range(node.num_gpus)
    }
    for job in held:
        gpus.difference_update(
            job.gpus,
            job.reserved_gpus,
            job.previous_generation.gpus if job.previous_generation is not None else (),
        )
    return gpus


def _distance(part: PoolState, one: GpuId, other: GpuId) -> tuple[bool, bool]:
    """Sort key: a GPU of the same node is nearer than one of the same rack."""
    return one.node_id != other.node_id, rack_of(part, one.node_id) != rack_of(part, other.node_id)
