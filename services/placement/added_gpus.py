"""The GPUs of other types that join a job, as the allocation gives them. Pure (docs/adr/0049).

They never displace a job of their own type: this is decided after the GPUs of all jobs on their own types.
"""

# pyright: strict

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set

from elasticflow.services.placement.due_jobs import allocated_of_others, given_up_gpus, held_of_others, new_generation
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.state.gpu_types import as_recorded, recorded_type
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, rack_of, slow_gpus_at, spec_of
from elasticflow.shared.state.topology import Node, num_shared


def kept_added_gpus(state: PoolState, due: Collection[str]) -> dict[str, tuple[GpuId, ...]]:
    """The GPUs of other types on live nodes that each job with such GPUs keeps.

    They are as many as are allocated; all if the job is not due.
    """
    return {
        job_id: _allocated(state, job) if job_id in due else held_of_others(state, job)
        for job_id, job in state.live_jobs.items()
        if job.num_added_gpus
    }


def added_gpus(
    state: PoolState,
    anew: Collection[str],
    own_gpus: Mapping[str, tuple[GpuId, ...]],
    kept: Mapping[str, tuple[GpuId, ...]],
    now_s: float,
) -> dict[str, tuple[GpuId, ...]]:
    """The GPUs of other types by job, in the order of `allocated_mix`; none where too few are free.

    anew: the jobs that are placed anew; own_gpus: of these, on their types. GPUs that count as slow join no job.
    """
    mixes = {job_id: mix for job_id in sorted(anew) if (mix := allocated_of_others(state, state.live_jobs[job_id]))}
    if not mixes:
        return {}
    taken = set[GpuId](slow_gpus_at(state, now_s))
    for job_id, job in state.live_jobs.items():
        taken.update(own_gpus.get(job_id, ()) if job_id in anew else (*job.gpus, *job.reserved_gpus))
        taken.update(kept.get(job_id, ()))
    free = _free_by_type(state, taken)
    found = dict[str, tuple[GpuId, ...]]()
    for job_id, mix in mixes.items():
        chosen = list[GpuId]()
        for gpu_type, counts in mix.items():
            held = [gpu for gpu in kept.get(job_id, ()) if recorded_type(state, gpu) == gpu_type]
            own = (*own_gpus.get(job_id, ()), *chosen)
            others = free[gpu_type].difference(given_up_gpus(state, job_id))
            chosen += _near_and_in_few_nodes(state, own, others, held, len(counts))
        if len(chosen) == sum(map(len, mix.values())):
            found[job_id] = tuple(chosen)
            for of_type in free.values():
                of_type.difference_update(chosen)
    return found


def _allocated(state: PoolState, job: Job) -> tuple[GpuId, ...]:
    """Its present GPUs of other types, as many as the allocation leaves it, in rank order."""
    left = defaultdict[str, int](int)
    left.update({other: len(counts) for other, counts in allocated_of_others(state, job).items()})
    kept = list[GpuId]()
    for gpu in held_of_others(state, job):
        gpu_type = recorded_type(state, gpu)
        if left[gpu_type] and gpu not in given_up_gpus(state, job.job_id):
            left[gpu_type] -= 1
            kept.append(gpu)
    return tuple(kept)


def _free_by_type(state: PoolState, taken: Set[GpuId]) -> defaultdict[str, set[GpuId]]:
    free = defaultdict[str, set[GpuId]](set)
    for node in state.nodes.values():
        gpus = (GpuId(node.node_id, index) for index in range(node.num_gpus if node.takes_jobs else 0))
        for gpu in gpus:
            if gpu not in taken:
                free[recorded_type(state, gpu)].add(gpu)
    return free


def _near_and_in_few_nodes(
    state: PoolState, own: Iterable[GpuId], free: Iterable[GpuId], held: list[GpuId], count: int
) -> list[GpuId]:
    """The held GPUs and free ones, `count` in all: of nodes in use first, then of nodes whose racks are nearest to the
    job's, then of those that fit best, or are largest. own: the GPUs of its share.

    Fewer if too few are free.
    """
    by_node = defaultdict[str, list[GpuId]](list)
    for gpu in sorted(free):
        by_node[gpu.node_id].append(gpu)
    chosen = held[:count]
    paths = {node_id: _path(state, node_id) for node_id in by_node}
    near = {_path(state, gpu.node_id) for gpu in (*own, *chosen)}
    while len(chosen) < count and by_node:
        missing, used = count - len(chosen), {gpu.node_id for gpu in chosen}

        def preference(node_id: str, missing: int = missing, used: set[str] = used) -> tuple[bool, int, bool, int, str]:
            num_free = len(by_node[node_id])
            is_enough = num_free >= missing
            nearness = max((num_shared((paths[node_id], path)) for path in near), default=0)
            return node_id not in used, -nearness, not is_enough, num_free if is_enough else -num_free, node_id

        node_id = min(by_node, key=preference)
        chosen += by_node.pop(node_id)[:missing]
        near.add(paths[node_id])
    return chosen


def _path(state: PoolState, node_id: str) -> tuple[str, ...]:
    """The locations that contain a node, from the outside in; none if its rack is unknown."""
    return Node(node_id, 0, rack=rack_of(state, node_id)).path


# --- Jobs whose share is on another type leave it, before other jobs get these GPUs --------------------
# A profiling run continues on another type, or its job is admitted on another one than the last that was measured.
# GPUs of other types that joined a job are no part of its share.


def without_other_types(state: PoolState) -> Iterator[PlacedJob]:
    """A generation without GPUs for each job with a share of another type."""
    if len(state.gpu_types) > 1:
        for _, job in sorted(state.live_jobs.items()):
            if _is_on_another_type(state, job):
                yield new_generation(job, ())


def _is_on_another_type(state: PoolState, job: Job) -> bool:
    nodes = (state.nodes.get(gpu.node_id) for gpu in job.own_gpus)
    return any(node is not None and as_recorded(state, node.gpu_type) != spec_of(job).gpu_type for node in nodes)
