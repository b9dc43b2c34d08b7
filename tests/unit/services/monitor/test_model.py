"""The reports that the monitor keeps of jobs and nodes, and when it deletes them."""

from elasticflow.services.monitor.model import HeartbeatStored, evolve, observe, start
from elasticflow.shared.messages import events
from elasticflow.shared.state.fold.nodes import KEEP_LEFT_S
from testbed.histories import NOW_S, pool


def test_heartbeats_of_removed_nodes_are_forgotten_and_those_of_unknown_nodes_kept() -> None:
    state = start(pool(1, 1).state)
    for node_id, incarnation in (("node-0", "first-0"), ("node-1", "first-1"), ("coming", "i")):
        heard = events.NodeReported(node_id=node_id, incarnation=incarnation, at_s=NOW_S)
        state = observe(state, HeartbeatStored(heartbeat=heard, revision=1), NOW_S)
    left = events.NodeLost(node_id="node-0", incarnation="first-0", reason="left", at_s=NOW_S)
    joined = events.NodeJoined(node_id="new", incarnation="i", num_gpus=1, device="cpu", at_s=NOW_S + KEEP_LEFT_S + 1.0)
    for message in (left, joined):
        state = evolve(state, message, state.pool.sequence + 1)
    assert set(state.heartbeats) == {"node-1", "coming"}
