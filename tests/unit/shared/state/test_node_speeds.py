"""A node with a wrong GPU type is told from a node with a slow GPU by the speeds of all its jobs."""

import pytest

from elasticflow.cli.listings import slower_lines
from elasticflow.history.pool_views import node_views
from elasticflow.shared.messages import events
from elasticflow.shared.state.nodes import slower_nodes
from testbed.histories import NOW_S, History
from tests.support.worker_events import admitted, joined, placed

Speeds = dict[str, list[float]]  # by node, of one job after another on one GPU


def pool_with(speeds: Speeds, gpu_types: tuple[str, str] = ("V100", "V100")) -> History:
    history = History().configured()
    for number, gpu_type in enumerate(gpu_types):
        history.then(joined("one", f"node-{number}", gpu_type=gpu_type))
    for node, ratios in speeds.items():
        for number, ratio in enumerate(ratios):
            trained(history, f"{node}-job-{number}", node, ratio)
    return history


def trained(history: History, job_id: str, node: str, *rates: float) -> None:
    """A job on a GPU of the node that reports these speeds; its curve says one iteration/s."""
    history.then(admitted(job_id), placed(1, f"{node}:0", job_id=job_id)).started(job_id)
    for iteration, rate in enumerate(rates, start=1):
        history.then(
            events.JobProgressed(
                job_id=job_id,
                generation=1,
                iteration=iteration,
                iterations_per_s=rate,
                at_s=NOW_S + 5.0 * iteration,
            )
        )
    history.finished(job_id, at_s=NOW_S + 100.0)


def test_a_node_on_which_all_jobs_are_slow_probably_has_another_type() -> None:
    history = pool_with({"node-0": [1.0, 0.98, 1.02], "node-1": [0.7, 0.69, 0.72]})
    assert slower_nodes(history.state) == {"node-1": pytest.approx(0.3)}
    assert slower_lines(node_views(history.state)) == [
        "node-1 is slower than other nodes of type V100 by 30%: is its EF_GPU_TYPE right?"
    ]


@pytest.mark.parametrize(
    "speeds",
    [
        pytest.param({"node-0": [1.0, 1.0, 1.0], "node-1": [0.7, 1.0, 0.7]}, id="one GPU of the node is slow"),
        pytest.param({"node-0": [1.0, 1.0, 1.0], "node-1": [1.0, 0.7, 0.7, 0.7]}, id="it became slower later"),
        pytest.param({"node-0": [1.0, 1.0, 1.0], "node-1": [0.7, 0.7]}, id="too few jobs"),
        pytest.param({"node-0": [1.0, 1.0], "node-1": [0.7, 0.7, 0.7]}, id="too few jobs to compare with"),
        pytest.param({"node-0": [1.0, 1.0, 1.0], "node-1": [0.85, 0.85, 0.85]}, id="a small difference"),
    ],
)
def test_other_slow_nodes_have_their_type(speeds: Speeds) -> None:
    assert slower_nodes(pool_with(speeds).state) == {}


def test_nodes_of_different_types_are_not_compared() -> None:
    history = pool_with({"node-0": [1.0] * 3, "node-1": [0.5] * 3}, ("V100", "P100"))
    assert slower_nodes(history.state) == {}


def test_the_highest_speed_of_a_job_counts() -> None:
    history = pool_with({"node-0": [1.0] * 3})
    for number in range(3):
        trained(history, f"b-{number}", "node-1", 0.3, 0.99, 0.6)
    assert slower_nodes(history.state) == {}
    assert [speed.ratio for speed in history.state.speeds_on_nodes["node-1"]] == [0.99] * 3


def test_a_node_that_joins_anew_starts_anew() -> None:
    history = pool_with({"node-0": [1.0] * 3, "node-1": [0.7] * 3})
    history.then(joined("two", "node-1", gpu_type="P100"))
    assert slower_nodes(history.state) == {}
    assert "node-1" not in history.state.speeds_on_nodes
