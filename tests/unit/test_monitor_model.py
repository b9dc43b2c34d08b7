"""What the monitor remembers of jobs and nodes, and when it forgets them."""

from services.monitor.model import evolve, observe, start
from shared.messages import events
from shared.messages.fold_nodes import KEEP_LEFT_S
from tests.histories import NOW_S, pool


def test_a_node_long_gone_is_heard_no_longer_and_one_not_yet_known_still_is() -> None:
    state = start(pool(1, 1).state)
    for node_id, incarnation in (("node-0", "first-0"), ("node-1", "first-1"), ("coming", "i")):
        heard = events.NodeReported(node_id=node_id, incarnation=incarnation, at_s=NOW_S)
        state = observe(state, heard, NOW_S)
    left = events.NodeLost(node_id="node-0", incarnation="first-0", reason="left", at_s=NOW_S)
    joined = events.NodeJoined(
        node_id="new", incarnation="i", num_gpus=1, device="cpu", at_s=NOW_S + KEEP_LEFT_S + 1.0
    )
    for message in (left, joined):
        state = evolve(state, message, state.pool.sequence + 1)
    assert set(state.heard) == {"node-1", "coming"}
