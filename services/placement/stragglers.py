"""A straggler, a worker that delays its peers, gets another GPU.

The change costs a job that switches without stopping some milliseconds. So a promised job gets a faster GPU too; its
number of GPUs stays. Where workers would have to stop, the slow GPU is only reported. A job that is placed anew gets
other GPUs if these are connected as well (shared/scheduling/placement/free_blocks.py).
"""

from collections.abc import Collection, Iterable, Iterator

from elasticflow.services.placement.due_jobs import new_generation
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, rack_of, slow_gpus_at

SETTLED_S = 60.0  # on its GPUs before a job gets another one, because the cause may move with the job


def replacements(state: PoolState, now_s: float, held: Iterable[Job]) -> Iterator[PlacedJob]:
    """A generation for each job that a slow GPU delays, with the slowest GPU replaced by the nearest free one.

    state: the part of one type. held: the jobs of all types, whose GPUs are not free. A job with GPUs of other types
    is left as it is: the allocator decides what they are worth to it.
    """
    slow = slow_gpus_at(state, now_s)
    if not slow or not state.config.stop_free:
        return
    free = _free(state, held) - slow.keys()
    for job in sorted(state.live_jobs.values(), key=lambda job: job.job_id):
        delayed_by = [gpu for gpu in job.gpus if gpu in slow and slow[gpu].job_id == job.job_id]
        if not delayed_by or not free or not _may_change(job, now_s):
            continue
        slowest = max(delayed_by, key=lambda gpu: (slow[gpu].slowdown, gpu))
        nearest = min(free, key=lambda gpu: (*_distance(state, slowest, gpu), gpu))
        gpus = tuple(nearest if gpu == slowest else gpu for gpu in job.gpus)
        yield new_generation(job, gpus)


def replacement_due_s(state: PoolState, held: Collection[Job]) -> float | None:
    """When the first job has settled that gets another GPU then. Arguments: as of `replacements`."""
    if not any(node.slow_gpus for node in state.nodes.values()):
        return None
    settled_s = sorted(job.placed_at_s + SETTLED_S for job in state.live_jobs.values() if job.gpus)
    return next((at_s for at_s in settled_s if any(replacements(state, at_s, held))), None)


def _may_change(job: Job, now_s: float) -> bool:
    trains = job.training and job.phase is Phase.ADMITTED and not job.has_outdated_spec and not job.stopping
    return trains and len(job.gpus) == job.num_gpus and not job.num_added_gpus and now_s >= job.placed_at_s + SETTLED_S


def _free(state: PoolState, held: Iterable[Job]) -> set[GpuId]:
    gpus = {
        GpuId(node.node_id, index) for node in state.nodes.values() if node.takes_jobs for index in range(node.num_gpus)
    }
    for job in held:
        gpus.difference_update(
            job.gpus,
            job.reserved_gpus,
            job.previous_generation.gpus if job.previous_generation is not None else (),
        )
    return gpus


def _distance(state: PoolState, one: GpuId, other: GpuId) -> tuple[bool, bool]:
    """Sort key: a GPU of the same node is nearer than one of the same rack."""
    return one.node_id != other.node_id, rack_of(state, one.node_id) != rack_of(state, other.node_id)
