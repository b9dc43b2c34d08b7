"""Where promised jobs are: whether each is on as few nodes as a buddy block of its size needs at worst.

Independent of the scheduler: it knows the sizes of the nodes only. A block of 2^s GPUs lies within a node wherever 2^s
divides the sizes of all nodes (docs/adr/0107).
"""

import math
from collections.abc import Mapping, Sequence

from elasticflow.shared.messages.events import PlacementDecided, PlanEvent
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.workload.workload import ClusterShape


class PlacedBlocks:
    """placements: of promised jobs, that were checked. apart: those on more nodes."""

    def __init__(self, cluster: ClusterShape) -> None:
        self.placements = self.apart = 0
        self._within_a_node: Mapping[str, int] = {
            gpu_type: min(
                node.num_gpus & -node.num_gpus for node in cluster.nodes.values() if node.gpu_type == gpu_type
            )
            for gpu_type in cluster.gpu_types
        }
        self._type_of_node = {node_id: node.gpu_type for node_id, node in cluster.nodes.items()}

    def decided(self, before: PoolState, events: Sequence[PlanEvent]) -> None:
        """Check the placements of a decision."""
        for event in events:
            for placed in event.placements if isinstance(event, PlacementDecided) else ():
                own = placed.gpus[: len(placed.gpus) - placed.num_added_gpus]
                if not own or not before.live_jobs[placed.job_id].promised:
                    continue
                largest = self._within_a_node[self._type_of_node[own[0].node_id]]
                self.placements += 1
                self.apart += len({gpu.node_id for gpu in own}) > math.ceil(len(own) / largest)
