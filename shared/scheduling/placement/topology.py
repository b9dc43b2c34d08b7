"""The topology: a tree of cluster, racks, nodes, sockets and GPUs. `placement` assigns the GPUs.

Racks may stand in rows and rows in halls: the name of a rack is a path, "hall-1/row-2/rack-3".
Source: ElasticFlow, section 4.3.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from typing import TypeAlias

from elasticflow.shared.messages.share_schedule import GpuId

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


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of the tree: what connects it, and its parts in order."""

    level: Level
    children: "tuple[Branch | GpuId, ...]"


@dataclass(frozen=True)  # not slotted: the tree is built once
class Topology:
    """The GPUs of some nodes; equal for the same nodes in any order. Raises ValueError for duplicate node ids."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.nodes, key=lambda node: (node.path, node.node_id)))
        if len({node.node_id for node in ordered}) < len(ordered):
            raise ValueError("two nodes have the same id")
        object.__setattr__(self, "nodes", ordered)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def tree(self) -> Branch:
        """The cluster, from the top down."""
        depth = max((len(node.path) for node in self.nodes), default=0)
        return Branch(CLUSTER, tuple(_parts(self.nodes, 0, depth)))

    @cached_property
    def gpus(self) -> tuple[GpuId, ...]:
        """All GPUs in tree order."""
        return tuple(GpuId(node.node_id, index) for node in self.nodes for index in range(node.num_gpus))

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of all nodes."""
        return len(self.gpus)

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
