"""Nodes that may have ended with others although no loss is reported: planners wait for them to join again. Pure.

After a power loss the first executor that is back joins a ledger in which all others count as alive. A start there
would wait for workers that never come. So no job is placed on an awaited node until it joins again, says that it is
still there, or is reported lost, which the monitor does after `heartbeat_timeout_s`. Plans count its GPUs
(docs/adr/0096).
"""

from dataclasses import replace

from elasticflow.shared.frozen_values import memoize_last
from elasticflow.shared.messages.events import NodeJoined
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.pool import NodeState, PoolState, with_nodes


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
