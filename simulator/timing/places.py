"""The effect of the place: how much slower a job is on more nodes than its number of GPUs needs.

The published tables hold one speed for each number of GPUs: of one node up to its size, of as few nodes as possible
above. Figure 2(b) of ElasticFlow has the slowdown of a job that is spread over eight nodes instead of one. Each
doubling of the nodes is assumed to add the same part of it; the model of a job makes no difference.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve

PUBLISHED_SLOWDOWN = 2.17  # of ResNet50 on eight nodes instead of one: ElasticFlow, figure 2(b)
_DOUBLINGS = 3  # from one node to eight


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """slowdown: of a job on eight nodes instead of one, at least 1. gpus_per_node: of each node."""

    slowdown: float
    gpus_per_node: int
    num_nodes: int

    def factor(self, gpus: Iterable[GpuId]) -> float:
        """The part of the speed on as few nodes as possible that a job has on these GPUs."""
        listed = list(gpus)
        return self._factor(len(listed), len({gpu.node_id for gpu in listed}))

    def apart(self, rate_by_num_gpus: Mapping[int, float]) -> dict[int, float]:
        """The speeds on several nodes: on the worst buddy block, or as far apart as can be where blocks are within a
        node."""
        nodes_by_n = {n: self._nodes_of_block(n) for n in rate_by_num_gpus}
        return {
            n: rate * self._factor(n, nodes_by_n[n] if nodes_by_n[n] > 1 else min(n, self.num_nodes))
            for n, rate in rate_by_num_gpus.items()
        }

    def on_blocks(self, curve: ScalingCurve) -> ScalingCurve:
        """The speeds on the worst buddy block of each size."""
        factors = (self._factor(n, self._nodes_of_block(n)) for n in curve.num_gpus_L)
        rates = (rate * factor for rate, factor in zip(curve.iterations_per_s_L, factors, strict=True))
        return ScalingCurve(curve.num_gpus_L, tuple(rates))

    def _nodes_of_block(self, num_gpus: int) -> int:
        """The nodes of the worst block: a block lies within a node if its size divides that of the node."""
        within_a_node = self.gpus_per_node & -self.gpus_per_node
        return min(max(num_gpus // within_a_node, 1), self.num_nodes)

    def num_nodes_needed(self, num_gpus: int) -> int:
        """The fewest nodes on which so many GPUs are."""
        return max(math.ceil(num_gpus / self.gpus_per_node), 1)

    def _factor(self, num_gpus: int, num_nodes: int) -> float:
        more = num_nodes / self.num_nodes_needed(num_gpus)
        return 1 / (1 + (self.slowdown - 1) * math.log2(more) / _DOUBLINGS) if more > 1 else 1.0
