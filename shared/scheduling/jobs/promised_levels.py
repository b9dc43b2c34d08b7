"""What connects the GPUs that a promise counts on: at worst, of each size of buddy block that the pool may give it.

Nodes that are down or have left may come back, and then blocks of several nodes may be worse than any that are there
now: those count too. So do the blocks that are left after each announced end, and while as many nodes as the reserve
are down (docs/adr/0107). A node that joins for the first time may make worse blocks, of what is left of several nodes.
Promises that were made before keep the better ones; until they have ended, fewer GPUs are promised (docs/adr/0125).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, groupby, islice
from math import inf

from elasticflow.shared.frozen_values import memoize_recent
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.nodes import ending_nodes
from elasticflow.shared.state.pool import NodeState, PoolState
from elasticflow.shared.state.topology import (
    GPU,
    NODE,
    Level,
    Node,
    Topology,
    place_of,
    pool_topology,
    topology_of_nodes,
)

MAX_CASES = 64
"""Of nodes that end, or are down within a reserve. With more, blocks of several nodes count as far apart."""


def promised_levels(state: PoolState) -> tuple[Level, ...]:
    """What connects 1, 2, 4, ... GPUs of a promised job at worst: also once nodes have left that announced it, while as
    many as the reserve are down, and once nodes have come back."""
    return _promised_levels(state.nodes, state.config)


def levels_of_promise(state: PoolState, promised_at_s: float) -> tuple[Level, ...]:
    """The same for a promise that was made then: nodes that joined later make none of its blocks worse."""
    return _levels_before(state.nodes, state.config, _num_joins(state, promised_at_s))


def promised_at_s(job: Job) -> float:
    """When the promise to a job was made that is to be kept; inf if there is none."""
    return job.admitted_at_s if job.promised and job.admitted_at_s is not None else inf


def have_distances(state: PoolState, promised_at_s: float = inf) -> bool:
    """Whether a job may be connected worse than a buddy block of its size, now or once nodes have come back.

    promised_at_s: as it was known then, without the nodes that joined later.
    """
    return _have_distances(state.nodes, state.config, _num_joins(state, promised_at_s))


def claimed_levels(state: PoolState) -> tuple[Level, ...]:
    """What connects the blocks at worst that placement may give promised jobs now: as all promises count on."""
    there = pool_topology(state).block_levels
    if _are_alike(state.nodes, state.config):
        return there
    kept = levels_of_promise(state, _oldest_promise_s(state))
    return tuple(map(min, there, (*kept, *there[len(kept) :])))


def most_in_blocks(state: PoolState, *, keeps_reserve: bool = True) -> float:
    """The most GPUs that promises may hold together, so that each job has a block that the oldest promise counts on.

    Where b blocks of n GPUs are good enough, it is less than (b + 1) n: then one of them is left for the last job.
    keeps_reserve: also while as many nodes as the reserve are down.
    """
    if state.config.migration_budget <= 0 or _are_alike(state.nodes, state.config):
        return inf
    most = _most_in_blocks(state.nodes, state.config, _num_joins(state, _oldest_promise_s(state)))
    return min(most.values() if keeps_reserve else (most.get(0, inf),), default=inf)


def _oldest_promise_s(state: PoolState) -> float:
    """When the oldest promise was made that is to be kept, also that of a quote; inf if there is none."""
    quotes = (quote.at_s for quote in state.quote_reservations.values())
    return min(chain(map(promised_at_s, state.live_jobs.values()), quotes), default=inf)


def _num_joins(state: PoolState, until_s: float) -> int:
    return bisect_right(joins_s(state.nodes), until_s)


@memoize_recent  # each decision asks for it, of each GPU type, and few events change nodes
def joins_s(nodes: Map[str, NodeState]) -> tuple[float, ...]:
    """When the nodes that are up joined for the first time, ascending."""
    return tuple(sorted(node.since_s for node in nodes.values() if _is_new(node)))


def _is_new(node: NodeState) -> bool:
    """Whether it is known when the node joined for the first time; else it counts as known to all promises."""
    return node.alive and not node.earlier_incarnations


def _known_before(nodes: Map[str, NodeState], num_joins: int) -> Map[str, NodeState]:
    """The nodes without those that joined for the first time after so many others."""
    later_s = joins_s(nodes)[num_joins:]
    if not later_s:
        return nodes
    known = nodes.mutate()
    for node in nodes.values():
        if _is_new(node) and node.since_s >= later_s[0]:
            del known[node.node_id]
    return known.finish()


@memoize_recent
def _promised_levels(nodes: Map[str, NodeState], config: PoolConfig) -> tuple[Level, ...]:
    together, cases = _with_all(nodes, config), _cases(nodes, config)
    if config.migration_budget <= 0:
        return (GPU, *(together.worst_level for _ in together.block_levels[1:]))
    if cases is None:
        return tuple(level if level <= NODE else together.worst_level for level in together.block_levels)
    worst = list(together.block_levels)
    for topology, _, _ in cases:
        worst[: len(topology.block_levels)] = map(max, worst, topology.block_levels)
    return tuple(worst)


@memoize_recent
def _levels_before(nodes: Map[str, NodeState], config: PoolConfig, num_joins: int) -> tuple[Level, ...]:
    """The levels of a promise that was made after so many nodes had joined."""
    now, known = _promised_levels(nodes, config), _known_before(nodes, num_joins)
    if known is nodes or _are_alike(nodes, config) or _cases(nodes, config) is None:
        return now
    before = _promised_levels(known, config)
    return tuple(map(min, now, (*before, *now[len(before) :])))


@memoize_recent
def _have_distances(nodes: Map[str, NodeState], config: PoolConfig, num_joins: int) -> bool:
    return _with_all(_known_before(nodes, num_joins), config).has_distances


@memoize_recent
def _most_in_blocks(nodes: Map[str, NodeState], config: PoolConfig, num_joins: int) -> Mapping[int, float]:
    """By the number of nodes of the reserve that are down."""
    kept, most = _levels_before(nodes, config, num_joins), dict[int, float]()
    for topology, num_gone, num_down in _cases(nodes, config) or ():
        for size, (level, count_by_level) in enumerate(zip(kept, topology.num_blocks, strict=False)):
            if max(count_by_level) > level:
                num_good = sum(count for at, count in count_by_level.items() if at <= level)
                most[num_down] = min(most.get(num_down, inf), ((num_good + 1) << size) - 1 + num_gone)
    return most


@memoize_recent
def _are_alike(nodes: Map[str, NodeState], config: PoolConfig) -> bool:
    """Whether the same connects all blocks of each size once all nodes are up: then no node made any of them worse."""
    return all(len(count_by_level) == 1 for count_by_level in _with_all(nodes, config).num_blocks)


@memoize_recent
def _with_all(nodes: Map[str, NodeState], config: PoolConfig) -> Topology:
    """The topology once all nodes are up that the pool remembers."""
    return Topology(tuple(place_of(node, config) for node in nodes.values()))


@memoize_recent
def _cases(nodes: Map[str, NodeState], config: PoolConfig) -> list[tuple[Topology, int, int]] | None:
    """The topologies of the nodes that may be up, each with the GPUs that have ended by then, and the number of nodes
    that are down. None if they are too many."""
    num_gpus, found = _num_gpus(nodes.values()), list[tuple[Topology, int, int]]()
    for left in _once_nodes_end(nodes):
        num_gone = num_gpus - _num_gpus(left)
        for up in islice(_while_down(left, config), MAX_CASES + 1):
            found.append((topology_of_nodes(up, config), num_gone, len(left) - len(up)))
        if len(found) > MAX_CASES:
            return None
    return found


def _num_gpus(nodes: Iterable[NodeState]) -> int:
    return sum(node.num_gpus for node in nodes if node.takes_jobs)


def _once_nodes_end(nodes: Map[str, NodeState]) -> Iterator[list[NodeState]]:
    """The nodes that are left, now and after each announced end."""
    left = dict(nodes)
    yield list(left.values())
    ending = sorted(ending_nodes(nodes), key=lambda node: (node.until_s, node.node_id))
    for _, together in groupby(ending, key=lambda node: node.until_s):
        for node in together:
            del left[node.node_id]
        yield list(left.values())


def _while_down(nodes: Sequence[NodeState], config: PoolConfig) -> Iterator[list[NodeState]]:
    """The nodes that are up while up to the reserve are down; equal nodes of a rack make one case."""
    alike = defaultdict[Node, list[str]](list)
    for node in sorted(nodes, key=lambda node: node.node_id):
        if node.takes_jobs:
            alike[replace(place_of(node, config), node_id="")].append(node.node_id)
    some = [(place, node_id) for place, names in alike.items() for node_id in names[: config.reserve_nodes]]
    for num_down in range(config.reserve_nodes + 1):
        tried = set[tuple[Node, ...]]()
        for down in combinations(some, num_down):
            if (case := tuple(place for place, _ in down)) not in tried:
                tried.add(case)
                yield [node for node in nodes if node.node_id not in {node_id for _, node_id in down}]
