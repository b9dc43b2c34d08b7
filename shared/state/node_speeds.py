"""Nodes that are slower than others of their GPU type since their first job: their type is probably wrong. Pure.

A slow GPU, or a node that becomes slower later, leaves jobs that were fast there. A wrong type leaves none, so the
fastest job of a node decides. Speeds are relative to the scaling curve of the job's profile on the type.
"""
# pyright: strict

from statistics import median

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import JobProgressed
from elasticflow.shared.state.job import Job, nodes_of
from elasticflow.shared.state.pool import PoolState, SpeedOnNode, spec_of

MIN_JOBS = 3  # on the node, and on others of its type
MAX_JOBS = 8  # the newest of a node
SLOWER = 0.2  # than the median of the others: less may be chance
FASTER = 1.1  # a higher speed of the same job replaces the known one if it exceeds it by so much


def with_speed_on_node(state: PoolState, job: Job, event: JobProgressed) -> PoolState:
    """The state with the reported speed, if the job trains on one node alone and its curve says how fast it should."""
    nodes, curve = nodes_of(job.gpus), state.curves.get(spec_of(job).profile_key)
    expected = curve.iterations_per_s.get(len(job.gpus)) if curve is not None and curve.complete else None
    if len(nodes) != 1 or not expected or not event.iterations_per_s or not job.trains_as_profiled:
        return state
    known = state.speeds_on_nodes.get(nodes[0], ())
    newest = SpeedOnNode(job_id=job.job_id, ratio=event.iterations_per_s / expected)
    before = next((speed.ratio for speed in known if speed.job_id == job.job_id), 0.0)
    if newest.ratio < FASTER * before:
        return state
    others = tuple(speed for speed in known if speed.job_id != job.job_id)
    speeds = (*others, newest)[-MAX_JOBS:]
    return fast_replace(state, speeds_on_nodes=state.speeds_on_nodes.set(nodes[0], speeds))


def without_speeds_on_node(state: PoolState, node_id: str) -> PoolState:
    """After a node has joined anew, or is forgotten."""
    if node_id not in state.speeds_on_nodes:
        return state
    return fast_replace(state, speeds_on_nodes=state.speeds_on_nodes.delete(node_id))


def slower_nodes(state: PoolState) -> dict[str, float]:
    """The part by which each such node is slower than others of its type, by node: 0.3 is 30 %."""
    of_type = dict[str, dict[str, list[float]]]()
    for node_id, speeds in state.speeds_on_nodes.items():
        node = state.nodes.get(node_id)
        if node is not None and node.alive:
            of_type.setdefault(node.gpu_type, {})[node_id] = [speed.ratio for speed in speeds]
    found = dict[str, float]()
    for ratios_by_node in of_type.values():
        for node_id, ratios in ratios_by_node.items():
            others = [ratio for other, them in ratios_by_node.items() if other != node_id for ratio in them]
            if min(len(ratios), len(others)) >= MIN_JOBS and max(ratios) < (1.0 - SLOWER) * median(others):
                found[node_id] = 1.0 - median(ratios) / median(others)
    return dict(sorted(found.items()))


def slower_node_in_words(node_id: str, gpu_type: str, part: float) -> str:
    """What `eflow nodes` and the monitor's log say about it."""
    others = f"other nodes of type {gpu_type}" if gpu_type else "the other nodes"
    return f"{node_id} is slower than {others} by {part:.0%}: is its EF_GPU_TYPE right?"
