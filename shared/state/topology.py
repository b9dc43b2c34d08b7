"""The topology: a tree of cluster, racks, nodes, sockets and GPUs, and what connects the GPUs of a job. Pure.

`scheduling/placement` assigns the GPUs.

Racks may stand in rows and rows in halls: the name of a rack is a path, "hall-1/row-2/rack-3".
Source: ElasticFlow, section 4.3.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice, takewhile
from typing import NamedTuple, TypeAlias

from elasticflow.shared.frozen_values import memoize_recent
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.pool import NodeState, PoolState

Level: TypeAlias = int
"""What connects a set of GPUs; lower is faster. Rows (RACK + 1) and so on come above racks; CLUSTER is the highest."""

GPU: Level = 0
SOCKET: Level = 1
NODE: Level = 2
RACK: Level = 3
CLUSTER: Level = 255  # above the longest possible rack path

LEVEL_BY_NAME = {"gpu": GPU, "socket": SOCKET, "node": NODE, "rack": RACK, "cluster": CLUSTER}


@dataclass(frozen=True, slots=True)
class Node:
    """A machine; its GPUs are spread evenly over its sockets, the first sockets getting one more."""

    node_id: str
    num_gpus: int
    sockets: int = 1
    rack: str = ""  # the path of its rack from the outside in; "": unknown

    def __post_init__(self) -> None:
        if self.num_gpus < 0 or self.sockets < 1:
            raise ValueError(f"node {self.node_id}: {self.num_gpus} GPUs on {self.sockets} sockets")

    @property
    def path(self) -> tuple[str, ...]:
        """The locations that contain it, from the outside in."""
        return tuple(part for part in self.rack.split("/") if part)

    def socket_of(self, gpu_index: int) -> int:
        """The socket of a GPU."""
        base, more = divmod(self.num_gpus, self.sockets)
        in_larger = more * (base + 1)
        return gpu_index // (base + 1) if gpu_index < in_larger else more + (gpu_index - in_larger) // max(base, 1)


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of the tree: what connects it, and its parts in order."""

    level: Level
    children: "tuple[Branch | GpuId, ...]"


class Block(NamedTuple):
    """A power of two of GPUs: one GPU, or two buddies of half the size. level: what connects them."""

    level: Level
    size: int
    halves: "tuple[Block, Block] | GpuId"


@dataclass(frozen=True)  # not slotted: the tree is built once
class Topology:
    """The GPUs of some nodes; equal for the same nodes in any order. Raises ValueError for duplicate node ids."""

    nodes: tuple[Node, ...]
    leaving: tuple[Node, ...] = ()  # nodes that take no jobs, on whose GPUs jobs may still be

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.nodes, key=lambda node: (node.path, node.node_id)))
        if len({node.node_id for node in ordered}) < len(ordered):
            raise ValueError("two nodes have the same id")
        object.__setattr__(self, "nodes", ordered)
        object.__setattr__(self, "leaving", tuple(sorted(self.leaving, key=lambda node: node.node_id)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def tree(self) -> Branch:
        """The cluster, from the top down."""
        return Branch(CLUSTER, tuple(_parts(self.nodes, 0, self._depth)))

    @cached_property
    def gpus(self) -> tuple[GpuId, ...]:
        """All GPUs in tree order."""
        return tuple(GpuId(node.node_id, index) for node in self.nodes for index in range(node.num_gpus))

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return len(self.gpus)

    @cached_property
    def blocks(self) -> "tuple[Block, ...]":
        """The largest buddy blocks: one for each binary digit of the number of GPUs, paired as low as possible."""
        return tuple(_paired(self.tree))

    @cached_property
    def block_levels(self) -> tuple[Level, ...]:
        """What connects the GPUs of the worst buddy block of 1, 2, 4, ... GPUs (ElasticFlow, section 4.3)."""
        return tuple(max(count_by_level) for count_by_level in self.num_blocks)

    @cached_property
    def num_blocks(self) -> tuple[Mapping[Level, int], ...]:
        """How many buddy blocks of 1, 2, 4, ... GPUs there are, by what connects them."""
        counts = defaultdict[int, dict[Level, int]](dict)
        for block in self.blocks:
            _count(block, counts)
        return tuple(count_by_level for _, count_by_level in sorted(counts.items()))

    def block_level(self, num_gpus: int) -> Level:
        """What connects the worst buddy block of so many GPUs; CLUSTER if there is none."""
        size = num_gpus.bit_length() - 1
        return self.block_levels[size] if size < len(self.block_levels) else CLUSTER

    @cached_property
    def worst_level(self) -> Level:
        """What connects GPUs that are as far apart as GPUs can be."""
        return self.level_of(self.gpus)

    @property
    def has_distances(self) -> bool:
        """Whether a job may be connected worse than a buddy block of its size."""
        return any(level < self.worst_level for level in self.block_levels[1:])

    def level_of(self, gpus: Sequence[GpuId]) -> Level:
        """What connects these GPUs. GPUs of unknown nodes count as far away."""
        if len(gpus) < 2:
            return GPU
        on_nodes = list(dict.fromkeys(gpu.node_id for gpu in gpus))
        if any(node_id not in self._node_by_id for node_id in on_nodes):
            return CLUSTER
        nodes = [self._node_by_id[node_id] for node_id in on_nodes]
        if len(nodes) == 1:
            return SOCKET if len({nodes[0].socket_of(gpu.gpu_index) for gpu in gpus}) == 1 else NODE
        shared = num_shared([node.path for node in nodes])
        return max(RACK + self._depth - shared, RACK) if shared else CLUSTER

    @cached_property
    def _node_by_id(self) -> dict[str, Node]:
        return {node.node_id: node for node in (*self.leaving, *self.nodes)}

    @cached_property
    def _depth(self) -> int:
        return max((len(node.path) for node in self.nodes), default=0)

    @cached_property
    def _hash(self) -> int:
        return hash(self.nodes)


def _parts(nodes: Iterable[Node], above: int, depth: int) -> Iterable[Branch]:
    """The parts directly below the location `above` steps from the top; racks are at most `depth` steps from it."""
    for outer, inside in groupby(nodes, key=lambda node: node.path[above : above + 1]):
        if outer:
            yield Branch(RACK + depth - above - 1, tuple(_parts(inside, above + 1, depth)))
        else:
            yield from map(_node_branch, inside)


def _node_branch(node: Node) -> Branch:
    base, more = divmod(node.num_gpus, node.sockets)
    gpus = (GpuId(node.node_id, index) for index in range(node.num_gpus))
    sockets = (tuple(islice(gpus, base + (socket < more))) for socket in range(node.sockets))
    return Branch(NODE, tuple(Branch(SOCKET, on_socket) for on_socket in sockets))


def _paired(part: Branch | GpuId) -> list[Block]:
    """The largest blocks of a part of the tree, at most one of each size: equal ones pair up like the carries of a
    binary addition."""
    if isinstance(part, GpuId):
        return [Block(GPU, 1, part)]
    alone = dict[int, Block]()
    for child in part.children:
        for block in _paired(child):
            while (buddy := alone.pop(block.size, None)) is not None:
                block = Block(part.level, 2 * block.size, (buddy, block))
            alone[block.size] = block
    return list(alone.values())


def _count(block: Block, counts: defaultdict[int, dict[Level, int]]) -> None:
    of_size = counts[block.size]
    of_size[block.level] = of_size.get(block.level, 0) + 1
    if not isinstance(block.halves, GpuId):
        for half in block.halves:
            _count(half, counts)


def num_shared(paths: Sequence[tuple[str, ...]]) -> int:
    """So many outer locations contain all of these."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))


# --- The topology of a pool ----------------------------------------------------------------------------


def pool_topology(state: PoolState) -> Topology:
    """The places of the GPUs: as the nodes report, unless the pool's settings override it."""
    return _pool_topology(state.nodes, state.config)


@memoize_recent  # each decision asks for it, of each GPU type, and few events change nodes
def _pool_topology(nodes: Map[str, NodeState], config: PoolConfig) -> Topology:
    return topology_of_nodes(nodes.values(), config)


def topology_of_nodes(nodes: Iterable[NodeState], config: PoolConfig) -> Topology:
    """The topology of those of these nodes that take jobs."""
    places = {True: list[Node](), False: list[Node]()}
    for node in nodes:
        places[node.takes_jobs].append(place_of(node, config))
    return Topology(tuple(places[True]), tuple(places[False]))


def place_of(node: NodeState, config: PoolConfig) -> Node:
    """As the node reports, unless the pool's settings override it."""
    sockets = config.sockets_per_node if config.sockets_per_node > 1 else node.sockets
    return Node(node.node_id, node.num_gpus, sockets=sockets, rack=config.racks.get(node.node_id, node.rack))
