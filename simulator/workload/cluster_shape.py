"""The shape of a simulated cluster: how many nodes and GPUs it has, and of which types."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.limits import MAX_GPUS
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import TypedPool


class SimulatedNode(NamedTuple):
    gpu_type: str
    num_gpus: int


@dataclass(frozen=True, kw_only=True)  # not slotted: cached properties
class ClusterShape:
    """num_nodes machines with gpus_per_node GPUs each; neither need be a power of two.

    pool: its types; None: all GPUs are equal. A node has GPUs of one type, the last one of a type what is left.
    """

    num_nodes: int
    gpus_per_node: int
    pool: TypedPool | None = None

    @staticmethod
    def of_pool(pool: TypedPool, gpus_per_node: int) -> "ClusterShape":
        """Nodes of the first type come first, so that it is the first type of the simulated pool, too."""
        num_nodes = sum(math.ceil(count / max(gpus_per_node, 1)) for count in pool.num_gpus)
        return ClusterShape(num_nodes=num_nodes, gpus_per_node=gpus_per_node, pool=pool)

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least 1, not {count}"
            for name, count in (("nodes", self.num_nodes), ("GPUs per node", self.gpus_per_node))
            if count < 1
        ]
        if not problems and self.num_gpus > MAX_GPUS:
            problems.append(f"{self.num_gpus} GPUs are more than the {MAX_GPUS} that a pool may have")
        if problems:
            raise BadSettings(tuple(problems))

    @cached_property
    def num_gpus_by_type(self) -> Mapping[str, int]:
        """In the order of the types; the type is "" if all GPUs are equal."""
        if self.pool is None:
            return {NO_TYPE: self.num_nodes * self.gpus_per_node}
        return self.pool.num_gpus_by_type

    @property
    def num_gpus(self) -> int:
        return sum(self.num_gpus_by_type.values())

    @property
    def gpu_types(self) -> tuple[str, ...]:
        return tuple(self.num_gpus_by_type)

    @cached_property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """By id, in the order of their names."""
        digits = len(str(self.num_nodes - 1))
        shapes = (
            SimulatedNode(gpu_type, min(self.gpus_per_node, count - first))
            for gpu_type, count in self.num_gpus_by_type.items()
            for first in range(0, count, self.gpus_per_node)
        )
        return {f"node-{number:0{digits}d}": shape for number, shape in enumerate(shapes)}

    @property
    def node_ids(self) -> tuple[str, ...]:
        """In the order of their names."""
        return tuple(self.nodes)

    def gpus_of(self, node_id: str) -> tuple[GpuId, ...]:
        return tuple(GpuId(node_id, index) for index in range(self.nodes[node_id].num_gpus))
