"""The monitor logs a node whose GPU type is probably wrong, once."""

from structlog.testing import capture_logs

from elasticflow.services.monitor.node_watch import SlowerNodes
from elasticflow.shared.runtime.process.logs import log
from tests.support.worker_events import joined
from tests.unit.shared.state.test_node_speeds import pool_with

SPEEDS = {"node-0": [1.0, 0.98, 1.02], "node-1": [0.7, 0.69, 0.72]}


def test_a_slower_node_is_logged_once_and_again_in_another_life() -> None:
    history, nodes = pool_with(SPEEDS), SlowerNodes(log)
    with capture_logs() as logs:
        nodes.report(history.state)
        nodes.report(history.state)
    (entry,) = logs
    assert (entry["event"], entry["log_level"], entry["node_id"]) == ("NodeSlower", "warning", "node-1")
    assert entry["problem"] == "node-1 is slower than other nodes of type V100 by 30%: is its EF_GPU_TYPE right?"
    slower = history.state
    with capture_logs() as logs:
        nodes.report(history.then(joined("again", "node-1", gpu_type="P100")).state)
        assert logs == []
        nodes.report(slower)
    assert len(logs) == 1
