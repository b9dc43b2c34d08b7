"""Workers that hold up their peers get another GPU. Part of the policy.

A change costs a job that goes over without a stop milliseconds; so also one with a promise gets a faster GPU, its
number of GPUs stays. Where workers would have to stop, the GPU is only told of. Who is placed anew gets others where
these serve as well (shared/scheduling/free_blocks.py).
"""

from collections.abc import Iterator

from shared.messages.cluster import GpuId
from shared.messages.events import PlacedJob
from shared.messages.job_state import Job, Phase
from shared.messages.node_state import NodeState
from shared.messages.pool_state import PoolState, slow_gpus_at

SETTLED_S = 60.0  # in its place, before a job is given another: what is slow there may follow it


def replacements(state: PoolState, now_s: float) -> Iterator[PlacedJob]:
    """For each job that waits for a slow GPU, with the slowest of them replaced by the nearest free one."""
    slow = slow_gpus_at(state, now_s)
    if not slow or not state.config.stop_free:
        return
    free = _free(state) - slow.keys()
    for job in sorted(state.live_jobs.values(), key=lambda job: job.job_id):
        held_up_by = [gpu for gpu in job.gpus if gpu in slow and slow[gpu].job_id == job.job_id]
        if not held_up_by or not free or not _may_change(job, now_s):
            continue
        slowest = max(held_up_by, key=lambda gpu: (slow[gpu].slowdown, gpu))
        nearest = min(free, key=lambda gpu: (*_distance(state, slowest, gpu), gpu))
        gpus = tuple(nearest if gpu == slowest else gpu for gpu in job.gpus)
        yield PlacedJob(job_id=job.job_id, generation=job.generation + 1, gpus=gpus)


def replacement_due_s(state: PoolState) -> float | None:
    """When the first job has settled that will be given another GPU."""
    if not any(node.slow_gpus for node in state.nodes.values()):
        return None
    settled_s = sorted(job.placed_at_s + SETTLED_S for job in state.live_jobs.values() if job.gpus)
    return next((at_s for at_s in settled_s if any(replacements(state, at_s))), None)


def _may_change(job: Job, now_s: float) -> bool:
    trains = job.training and job.phase is Phase.ADMITTED and not job.outdated and not job.stopping
    return trains and len(job.gpus) == job.num_gpus and now_s >= job.placed_at_s + SETTLED_S


def _free(state: PoolState) -> set[GpuId]:
    gpus = {
        GpuId(node.node_id, index)
        for node in state.nodes.values()
        if node.alive
        for index in range(node.num_gpus)
    }
    for job in state.live_jobs.values():
        gpus.difference_update(
            job.gpus, job.seat, job.predecessor.gpus if job.predecessor is not None else ()
        )
    return gpus


def _distance(state: PoolState, one: GpuId, other: GpuId) -> tuple[bool, bool]:
    """Another node counts more than another rack, which it implies."""
    return one.node_id != other.node_id, _rack(state, one.node_id) != _rack(state, other.node_id)


def _rack(state: PoolState, node_id: str) -> str:
    node: NodeState = state.nodes[node_id]
    return state.config.racks.get(node_id, node.rack)
