"""Given this history of nodes that join and leave, then this state."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.fold.nodes import KEEP_LEFT_S, KEEP_LOST_S
from elasticflow.shared.state.pool import num_gpus_by_type
from testbed.histories import LINEAR, NOW_S, History, pool
from tests.support.worker_events import admitted, finished, job, joined, lost, placed, progressed, running


def test_a_lost_node_breaks_its_jobs_but_is_not_their_fault() -> None:
    history = running().then(progressed(1, 20, checkpoint=10), lost())
    a = job(history)
    assert (a.broken, a.iteration, a.restarts) == (True, 10, 0)
    assert history.state.num_gpus == 4


def test_nobody_waits_for_the_workers_of_a_lost_node() -> None:
    history = running().then(placed(2, "node-1:1"), lost())
    assert [s.node_id for s in job(history).stopping] == ["node-1"]
    ended = running().then(finished(1), lost())
    assert [s.node_id for s in job(ended).stopping] == ["node-1"]


def test_a_node_comes_back_as_another_incarnation_only() -> None:
    history = running().then(lost(), joined("first-0"))
    assert not history.state.nodes["node-0"].alive
    history.then(joined("second", num_gpus=2))
    assert (history.state.nodes["node-0"].alive, history.state.num_gpus) == (True, 6)
    before = history.state
    history.then(lost(), joined("first-0"))  # repeated, late
    assert replace(history.state, sequence=before.sequence) == before


def test_a_node_that_joins_anew_unasked_has_lost_its_workers() -> None:
    assert job(running().then(joined("second"))).broken
    assert not job(running().then(joined("first-0"))).broken


def test_a_node_that_comes_back_has_the_type_of_its_new_life_only() -> None:
    first = replace(joined("first", num_gpus=2, gpu_type="V100"), gpu_memory_bytes=16 << 30)
    history = History().configured().then(first, joined("other", "node-1", gpu_type="H100"))
    assert num_gpus_by_type(history.state) == {"H100": 4, "V100": 2}
    history.then(lost("node-0", "first"))
    assert num_gpus_by_type(history.state) == {"H100": 4}
    history.then(joined("second", gpu_type="H100"), first)
    node = history.state.nodes["node-0"]
    assert (node.incarnation, node.gpu_type, node.gpu_memory_bytes) == ("second", "H100", 0)
    assert num_gpus_by_type(history.state) == {"H100": 8}


def test_nodes_that_name_no_type_have_one() -> None:
    history = pool(4, 2).then(joined("third", "node-2", gpu_type="cpu-1"))
    assert num_gpus_by_type(history.state) == {"": 6, "cpu-1": 4}


def measured(profile_key: str) -> events.ThroughputMeasured:
    return events.ThroughputMeasured(
        profile_key=profile_key,
        num_gpus=1,
        iterations_per_s=1.0,
        job_id="ended",
        generation=1,
        source="profile",
        at_s=NOW_S,
    )


CURVES = {"curves": {"linear/b64": LINEAR}}


@pytest.mark.parametrize(
    ("configured", "messages", "types"),
    [
        ({}, (), ("K80",)),
        ({}, (replace(lost("node-0", "first"), reason="left"),), ("K80",)),
        ({}, (joined("again", "node-1", gpu_type="V100"),), ("V100", "K80")),
        ({}, (joined("again", "node-1"),), ("V100", "K80")),  # older executors name no type: it has the first
        ({}, (joined("again", "node-1", gpu_type="V100"), lost("node-1", "again")), ("V100", "K80")),
        ({}, (admitted(gpu_type=""),), ("V100", "K80")),
        ({}, (admitted(gpu_type="P100"),), ("K80",)),
        ({}, (measured("linear/b64"),), ("V100", "K80")),
        ({}, (measured("m@2/b64[2..8]"),), ("V100", "K80")),
        ({}, (measured("linear/b64@P100"),), ("K80",)),
        (CURVES, (), ("V100", "K80")),
    ],
)
def test_the_first_type_stays_the_first_while_anything_rests_on_it(
    configured: dict[str, Any], messages: tuple[Any, ...], types: tuple[str, ...]
) -> None:
    """The only node of the first type comes back with a type that is new to the pool."""
    history = History().then(events.PoolConfigured(config=PoolConfig(**configured), at_s=NOW_S))
    history.then(joined("first", gpu_type="V100"), *messages, joined("second", gpu_type="K80"))
    assert history.state.gpu_types == types


def test_after_a_change_of_type_no_gpu_counts_as_slow() -> None:
    slow = events.WorkerLagged(job_id="a", generation=1, rank=0, slowdown=2.0, at_s=NOW_S + 5.0)
    same = running().then(slow, lost(), joined("second"))
    assert [gpu.gpu_index for gpu in same.state.nodes["node-0"].slow_gpus] == [0]
    assert same.then(joined("third", gpu_type="H100")).state.nodes["node-0"].slow_gpus == ()


def test_nodes_long_gone_are_forgotten_once_no_job_stands_on_them() -> None:
    def gone(node: str, reason: Any, at_s: float) -> events.NodeLost:
        return events.NodeLost(node_id=node, incarnation="i", reason=reason, at_s=NOW_S + at_s)

    history = running().then(*[joined("i", node) for node in ("left", "silent", "stays")])
    history.then(gone("left", "left", 20.0), gone("silent", "silent", 20.0))
    history.then(events.NodeLost(node_id="node-0", incarnation="first-0", reason="left", at_s=NOW_S + 20.0))
    assert history.state.nodes["left"].left
    assert set(history.state.nodes) == {"node-0", "node-1", "left", "silent", "stays"}
    later = events.NodeJoined(
        node_id="new", incarnation="i", num_gpus=1, device="cpu", at_s=NOW_S + 20.0 + KEEP_LEFT_S + 1.0
    )
    assert set(history.then(later).state.nodes) == {"node-0", "node-1", "silent", "stays", "new"}
    history.then(placed(2, "node-1:1"))  # no job names node-0 any more
    much_later = replace(later, node_id="newer", at_s=NOW_S + 20.0 + KEEP_LOST_S + 1.0)
    assert set(history.then(much_later).state.nodes) == {"node-1", "stays", "new", "newer"}
