"""The fold of idle windows: a GPU is idle while it is there and the newest placement of no job names it.

Axes: G = GPUs of a node.
"""

from collections import defaultdict
from collections.abc import Iterable

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.awaited_nodes import is_still_there
from elasticflow.shared.state.idle_windows import CARRIES_A_JOB
from elasticflow.shared.state.pool import PoolState

# All others leave every job on its GPUs. Most messages of a ledger are others: this is known sooner than what changed.
MOVES_JOBS = (
    events.PlacementDecided,
    events.JobFinished,
    events.JobFailed,
    events.JobCancelled,
    events.JobProfiled,
    events.JobRejected,
)
CHANGES_NODES = (events.NodeJoined, events.NodeLost)


def with_idle_windows(before: PoolState, after: PoolState, event: Event) -> PoolState:
    """`after`, the state after an event, with the windows that the event begins and ends."""
    if isinstance(event, CHANGES_NODES):
        return _with_node(before, after, event) if after.nodes is not before.nodes else after
    if not isinstance(event, MOVES_JOBS) or after.live_jobs is before.live_jobs:
        return after
    is_placement = isinstance(event, events.PlacementDecided)
    job_ids = [placed.job_id for placed in event.placements] if is_placement else [event.job_id]
    left, taken = set[GpuId](), set[GpuId]()
    for job_id in job_ids:
        left.update(_gpus(before, job_id))
        taken.update(_gpus(after, job_id))
    return _with_gpus(after, left - taken, taken, event.at_s) if left or taken else after


def _gpus(state: PoolState, job_id: str) -> tuple[GpuId, ...]:
    job = state.live_jobs.get(job_id)
    return job.gpus if job is not None else ()


def _with_gpus(state: PoolState, idle: Iterable[GpuId], taken: Iterable[GpuId], at_s: float) -> PoolState:
    """Windows begin on the GPUs `idle`, unless they are idle already, and end on the GPUs `taken`.

    A job may take GPUs that it held before: their node was lost and came back, idle.
    """
    is_idle_by_node = defaultdict[str, dict[int, bool]](dict)
    for gpus, is_idle in ((idle, True), (taken, False)):
        for gpu in gpus:
            is_idle_by_node[gpu.node_id][gpu.gpu_index] = is_idle
    lengths_s, idle_since_s = list[float](), state.idle_since_s.mutate()
    for node_id, is_idle_by_gpu in is_idle_by_node.items():
        if node_id in idle_since_s:
            since_s_G = list(idle_since_s[node_id])
            for gpu, is_idle in is_idle_by_gpu.items():
                if gpu >= len(since_s_G):  # the node joined anew with fewer GPUs
                    continue
                lengths_s += [] if is_idle else [at_s - since_s_G[gpu]]
                since_s_G[gpu] = min(since_s_G[gpu], at_s) if is_idle else CARRIES_A_JOB
            idle_since_s[node_id] = tuple(since_s_G)
    return fast_replace(
        state, idle_since_s=idle_since_s.finish(), idle_windows=state.idle_windows.added(sorted(lengths_s))
    )


def _with_node(before: PoolState, after: PoolState, event: events.NodeJoined | events.NodeLost) -> PoolState:
    """A node that joins is idle; the windows of one that is lost end.

    A node that says again that it is there may carry jobs, and its windows go on.
    """
    if isinstance(event, events.NodeJoined) and is_still_there(before.nodes, event):
        return after
    node, known = after.nodes.get(event.node_id), before.idle_since_s.get(event.node_id, ())
    idle_since_s = after.idle_since_s.delete(event.node_id) if known else after.idle_since_s
    if node is not None and node.alive:
        idle_since_s = idle_since_s.set(event.node_id, (event.at_s,) * node.num_gpus)
    windows = after.idle_windows.added(event.at_s - since_s for since_s in known)
    return fast_replace(after, idle_since_s=idle_since_s, idle_windows=windows)
