"""Nodes of a pool: the awaited ones after a restart, those that announce their end, and slow ones. Pure."""

# pyright: strict

import math
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from elasticflow.shared.frozen_values import fast_replace, memoize_last
from elasticflow.shared.messages.events import JobProgressed, NodeJoined
from elasticflow.shared.messages.events.nodes import Starts
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import Job, nodes_of
from elasticflow.shared.state.pool import NodeState, PoolState, SpeedOnNode, spec_of, with_nodes


def with_awaited_nodes(state: PoolState, replaced: NodeState, joined: NodeJoined) -> PoolState:
    """The pool after a node has joined again without a report of its loss. replaced: what it was before.

    If what started its executor was started again, other executors that it had started have ended too. If a living
    monitor would have reported the node, the whole pool was down. Executors that name no `started_by` cannot say that
    they are still there.
    """
    heard_s, timeouts = joined.replaced_heard_s, state.config.timeouts
    silent_s = 0.0 if heard_s is None else joined.at_s - heard_s
    was_pool_down = silent_s > timeouts.heartbeat_timeout_s + timeouts.monitor_grace_s
    nodes = state.nodes.mutate()
    for node in state.nodes.values():
        if node.node_id == joined.node_id or not node.alive or node.started_by in ("", joined.started_by):
            continue
        has_ended_too = is_started_again(replaced, joined) and node.started_by == replaced.started_by
        if has_ended_too or (was_pool_down and heard_s is not None and node.since_s <= heard_s):
            nodes[node.node_id] = replace(node, awaited=True)
    return with_nodes(state, nodes.finish())


def live_starts(state: PoolState, starts: Starts) -> Starts:
    """Those of live jobs: no others matter."""
    return None if starts is None else tuple(start for start in starts if start[0] in state.live_jobs)


def is_started_again(replaced: NodeState, joined: NodeJoined) -> bool:
    """Whether the machine of a node, or the process that had started its executor, was started again."""
    return "" != replaced.started_by != joined.started_by != ""


def is_still_there(nodes: Map[str, NodeState], joined: NodeJoined) -> bool:
    """Whether a node of these has joined once more, under its present incarnation."""
    node = nodes.get(joined.node_id)
    return node is not None and node.incarnation == joined.incarnation


def confirmed(state: PoolState, node: NodeState, joined: NodeJoined) -> PoolState:
    """The pool after a node has said again that it is there; a repeated first join says nothing."""
    if not node.awaited or joined.at_s <= node.since_s:
        return state
    return with_nodes(state, state.nodes.set(node.node_id, replace(node, awaited=False)))


@memoize_last  # each decision and each wake asks for it, and few events change nodes
def awaited_nodes(nodes: Map[str, NodeState]) -> tuple[NodeState, ...]:
    """The nodes that are awaited, by id."""
    awaited = (node for node in nodes.values() if node.alive and node.awaited)
    return tuple(sorted(awaited, key=lambda node: node.node_id))


def without_awaited_nodes(state: PoolState) -> PoolState:
    """The pool as placement sees it: awaited nodes take no job."""
    awaited = {node.node_id: replace(node, alive=False) for node in awaited_nodes(state.nodes)}
    return with_nodes(state, state.nodes.update(awaited)) if awaited else state


# --- Nodes that announce their end: when each is drained, and what the pool loses then -----------------
# A node counts until `PoolConfig.leave_s` before its announced end: in that time its jobs move to other GPUs, or
# shrink.


class CapacityDrop(NamedTuple):
    """The pool has num_gpus GPUs fewer than before, from at_s on."""

    at_s: float
    num_gpus: int


class PromisableGpus(NamedTuple):
    """GPUs to promise now, and how many fewer later; drops: ascending, and never more than there are."""

    num_gpus: int
    drops: tuple[CapacityDrop, ...] = ()

    def limited_to(self, num_gpus: int) -> "PromisableGpus":
        """The same drops from a smaller number of GPUs."""
        left = most = min(self.num_gpus, num_gpus)
        drops = list[CapacityDrop]()
        for drop in self.drops:
            lost = min(drop.num_gpus, left)
            drops += [CapacityDrop(drop.at_s, lost)] if lost else []
            left -= lost
        return PromisableGpus(most, tuple(drops))


def drain_at_s(node: NodeState, leave_s: float) -> float:
    """When the node is to be drained; inf if it has announced no end."""
    return math.inf if node.until_s is None else node.until_s - leave_s


def nodes_to_drain(state: PoolState, now_s: float) -> list[NodeState]:
    """The nodes whose drain is due, by id."""
    ahead = [node for node in ending_nodes(state.nodes) if node.takes_jobs]
    return [node for node in ahead if drain_at_s(node, state.config.leave_s) <= now_s]


def next_drain_s(state: PoolState) -> float | None:
    """When the next drain is due."""
    ahead = [node for node in ending_nodes(state.nodes) if node.takes_jobs]
    return min((drain_at_s(node, state.config.leave_s) for node in ahead), default=None)


def promisable_of(nodes: Map[str, NodeState], reserve_nodes: int, leave_s: float) -> tuple[PromisableGpus, ...]:
    """GPUs to promise from now on: with the whole reserve kept back, then with one node less of it, at last with none.

    A reserve of r nodes leaves the GPUs that remain if the r largest nodes are down; nodes that are down count as part
    of the reserve. So the first number does not shrink while at most r nodes are down, nor when they return. The same
    holds at each later instant for the nodes that are there then.
    """
    counted = [node for node in nodes.values() if not node.left and not node.draining]
    drains_s = sorted({at_s for node in counted if (at_s := drain_at_s(node, leave_s)) < math.inf})
    stages = [counted, *([node for node in counted if drain_at_s(node, leave_s) > at_s] for at_s in drains_s)]
    by_reserve = list[PromisableGpus]()
    for kept_back in range(reserve_nodes, -1, -1):
        now, *later = (_promisable(stage, kept_back) for stage in stages)
        drops = zip(drains_s, [now, *later], later, strict=False)
        by_reserve.append(
            PromisableGpus(now, tuple(CapacityDrop(at_s, had - has) for at_s, had, has in drops if had > has))
        )
    return tuple(dict.fromkeys(by_reserve))


def _promisable(nodes: list[NodeState], kept_back: int) -> int:
    sizes = sorted((node.num_gpus for node in nodes), reverse=True)
    return min(sum(sizes[kept_back:]), sum(node.num_gpus for node in nodes if node.alive))


def moves_of(state: PoolState, ending: tuple[NodeState, ...], now_s: float) -> tuple[float, ...]:
    """The instants, ascending, at which jobs may have to move: the drains ahead, and those that have begun and are not
    over, because a job still has GPUs there. ending: see `ending_nodes`."""
    due_by_node = {node.node_id: drain_at_s(node, state.config.leave_s) for node in ending}
    begun = {node_id for node_id, at_s in due_by_node.items() if at_s <= now_s}
    used = {node_id for job in state.live_jobs.values() for node_id in nodes_of(job.gpus)} if begun else set[str]()
    return tuple(sorted({at_s for node_id, at_s in due_by_node.items() if node_id not in begun or node_id in used}))


@memoize_last  # each decision and each wake asks for it, and few events change nodes
def ending_nodes(nodes: Map[str, NodeState]) -> tuple[NodeState, ...]:
    """The nodes that are there and have announced an end, by id."""
    ending = (node for node in nodes.values() if node.alive and node.until_s is not None)
    return tuple(sorted(ending, key=lambda node: node.node_id))


# --- Starts of jobs that may have ended a node: one after the other on each node ----------------------


def waits_its_turn(state: PoolState, job: Job) -> bool:
    """Whether the start of this job waits for that of another one, which was placed before it on one of its nodes, or
    which must still end there.

    Nodes have ended in starts of both since they last trained. If one ends again, it shall be known in whose start.
    """
    if not job.ended_starts:
        return False
    others = (other for other in state.live_jobs.values() if other.ended_starts and other.job_id != job.job_id)
    return any(not _nodes_in_start(other, before=job).isdisjoint(nodes_of(job.gpus)) for other in others)


def _nodes_in_start(job: Job, before: Job) -> set[str]:
    stopping = {stopping.node_id for stopping in job.stopping}
    is_first = (job.placed_at_s, job.job_id) < (before.placed_at_s, before.job_id)
    starts = is_first and job.started_at_s is None and not job.broken
    return {*stopping, *nodes_of(job.gpus)} if starts else stopping


# --- node speeds ---------------------------------------------------------------------------------------
# Nodes that are slower than others of their GPU type since their first job: their type is probably wrong. Pure.
#
# A slow GPU, or a node that becomes slower later, leaves jobs that were fast there. A wrong type leaves none, so the
# fastest job of a node decides. Speeds are relative to the scaling curve of the job's profile on the type.

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
    """Forget the speeds on a node that has joined anew, or is forgotten."""
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


# --- Nodes that keep files of a job which are not stored with it ---------------------------------------


def nodes_with_other_files(state: PoolState, job: Job, storing: str) -> tuple[str, ...]:
    """The nodes on which the job has trained in another data folder than the one from which this node stores files.

    Nodes that share a data folder name it alike.
    """
    store = state.nodes.get(storing)
    if store is None:
        return ()
    trained_on = (state.nodes.get(node_id) for node_id in job.trained_on)
    return tuple(node.node_id for node in trained_on if node and "" != node.data_folder != store.data_folder != "")
