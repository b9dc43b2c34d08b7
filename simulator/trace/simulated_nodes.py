"""Nodes of the simulated cluster: they join, leave at their announced end, are lost, and rejoin."""

from elasticflow.simulator.engine.event_queue import Engine
from elasticflow.simulator.engine.policy_driver import PolicyDriver
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import ClusterState
from elasticflow.simulator.trace.node_ends import EndsOfNodes, NodeEnds
from elasticflow.simulator.trace.simulated_pool import ClusterShape


class SimulatedNodes:
    """All nodes of the cluster join at once. ends: None if they announce none."""

    def __init__(
        self,
        engine: Engine,
        driver: PolicyDriver,
        cluster: ClusterShape,
        cluster_state: ClusterState,
        ends: NodeEnds | None,
    ) -> None:
        self._engine, self._driver = engine, driver
        self._shapes, self._cluster_state = cluster.nodes, cluster_state
        self._ends = EndsOfNodes(cluster.node_ids, ends) if ends is not None else None
        self._away_s = ends.away_s if ends is not None else None
        for node_id in cluster.node_ids:
            self._join(node_id)

    def lose(self, node_id: str) -> None:
        """A node is lost; its jobs lose their GPUs and keep their progress."""
        now_s = self._engine.now_s
        for job_id in self._cluster_state.jobs_on(node_id, now_s):
            self._driver.fold(simulated_events.progressed(self._cluster_state.trainings[job_id], now_s))
            self._cluster_state.release(job_id, now_s)
        self._cluster_state.lose(node_id, now_s)
        self._driver.fold(simulated_events.node_lost(self._driver.state.nodes[node_id], now_s))
        self._driver.soon()

    def rejoin(self, node_id: str) -> None:
        self._cluster_state.rejoin(node_id, self._engine.now_s)
        self._join(node_id)
        self._driver.soon()

    def _join(self, node_id: str) -> None:
        known, node, now_s = self._driver.state.nodes.get(node_id), self._shapes[node_id], self._engine.now_s
        until_s = self._ends.until_s(node_id, now_s) if self._ends is not None else None
        self._driver.fold(simulated_events.node_joined(node_id, node.num_gpus, known, now_s, node.gpu_type, until_s))
        if until_s is not None:
            self._engine.at(until_s, lambda: self._leave(node_id))

    def _leave(self, node_id: str) -> None:
        """A node ends as announced: all of its jobs have moved."""
        now_s = self._engine.now_s
        assert not self._cluster_state.jobs_on(node_id, now_s), f"{node_id} ends with jobs on it"
        self._cluster_state.lose(node_id, now_s)
        self._driver.fold(simulated_events.node_left(self._driver.state.nodes[node_id], now_s))
        if self._away_s is not None:
            self._engine.after(self._away_s, lambda: self.rejoin(node_id))
        self._driver.soon()
