"""Where the GPUs are: a tree of cluster, racks, nodes, sockets and GPUs. Who sits where is decided by `buddy`.

Source: ElasticFlow, section 4.3.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import groupby

from shared.messages.cluster import GpuId


class Level(IntEnum):
    """What connects a set of GPUs; the lower, the faster."""

    GPU = 0
    SOCKET = 1
    NODE = 2
    RACK = 3
    CLUSTER = 4


@dataclass(frozen=True, slots=True)
class Node:
    """A machine; its GPUs are spread evenly over its sockets, the first sockets getting one more."""

    node_id: str
    num_gpus: int
    sockets: int = 1
    rack: str = ""

    def __post_init__(self) -> None:
        if self.num_gpus < 0 or self.sockets < 1:
            raise ValueError(f"node {self.node_id}: {self.num_gpus} GPUs on {self.sockets} sockets")


@dataclass(frozen=True, slots=True)
class Branch:
    """A part of the tree: what it hangs together by, and its parts in order."""

    level: Level
    children: "tuple[Branch | GpuId, ...]"


@dataclass(frozen=True)  # not slotted: the tree is built once
class Topology:
    """The GPUs of some nodes; equal for the same nodes in any order."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.nodes, key=lambda node: (node.rack, node.node_id)))
        if len({node.node_id for node in ordered}) < len(ordered):
            raise ValueError("two nodes have the same id")
        object.__setattr__(self, "nodes", ordered)

    @cached_property
    def tree(self) -> Branch:
        """The cluster, from the top down."""
        racks = (
            Branch(Level.RACK, tuple(_node_branch(node) for node in nodes))
            for _, nodes in groupby(self.nodes, key=lambda node: node.rack)
        )
        return Branch(Level.CLUSTER, tuple(racks))

    @cached_property
    def gpus(self) -> tuple[GpuId, ...]:
        """All GPUs, in the order of the tree."""
        return tuple(GpuId(node.node_id, index) for node in self.nodes for index in range(node.num_gpus))

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return len(self.gpus)


def _node_branch(node: Node) -> Branch:
    base, more = divmod(node.num_gpus, node.sockets)
    sockets, first = list[Branch](), 0
    for socket in range(node.sockets):
        end = first + base + (socket < more)
        gpus = tuple(GpuId(node.node_id, index) for index in range(first, end))
        sockets.append(Branch(Level.SOCKET, gpus))
        first = end
    return Branch(Level.NODE, tuple(sockets))
