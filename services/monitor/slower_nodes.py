"""Logs nodes that are slower than others of their GPU type: their type is probably wrong. No decision depends on it."""

from typing import Any

from elasticflow.shared.state.node_speeds import slower_node_in_words, slower_nodes
from elasticflow.shared.state.pool import PoolState


class SlowerNodes:
    """Names each node once, and again after it was not slower meanwhile. log: of the service."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._reported = frozenset[str]()

    def report(self, state: PoolState) -> None:
        slower = slower_nodes(state)
        for node_id in sorted(slower.keys() - self._reported):
            words = slower_node_in_words(node_id, state.nodes[node_id].gpu_type, slower[node_id])
            self._log.warning("NodeSlower", node_id=node_id, problem=words)
        self._reported = frozenset(slower)
