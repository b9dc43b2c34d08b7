"""Nodes that announce their end: when each is drained, and what the pool loses then. Pure.

A node counts until `PoolConfig.leave_s` before its announced end: in that time its jobs move to other GPUs, or shrink.
"""

import math
from typing import NamedTuple

from elasticflow.shared.frozen_values import memoize_last
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import nodes_of
from elasticflow.shared.state.pool import NodeState, PoolState


class CapacityDrop(NamedTuple):
    """From at_s on the pool has num_gpus GPUs less than before."""

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
