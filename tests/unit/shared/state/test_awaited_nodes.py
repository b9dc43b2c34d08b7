"""Given this history of nodes that join again, then planners wait for these others."""

from dataclasses import replace

from elasticflow.services.placement.policy import decide, wake_at_s
from elasticflow.shared.messages import events
from elasticflow.shared.state.nodes import awaited_nodes
from testbed.histories import NOW_S, History
from tests.support.worker_events import job
from tests.unit.shared.state.fold.test_lost_starts import joins, silent, starting


def awaited(history: History) -> list[str]:
    return [node.node_id for node in awaited_nodes(history.state.nodes)]


def restarted() -> History:
    """Two nodes of one supervisor; the first is back under another one."""
    return starting().then(joins(0, 1, at_s=4.0, heard_s=2.0, supervisor=2))


def test_the_other_nodes_of_what_was_started_again_are_awaited() -> None:
    history = restarted()
    assert awaited(history) == ["node-1"]
    assert history.state.num_gpus == 8, "plans count on it"


def test_a_node_that_joins_again_or_is_lost_is_awaited_no_more() -> None:
    assert awaited(restarted().then(joins(1, 1, at_s=5.0, heard_s=2.0, supervisor=2))) == []
    assert awaited(restarted().then(silent(1, heard_s=5.0))) == []


def test_a_node_that_says_that_it_is_still_there_is_awaited_no_more() -> None:
    history = restarted()
    assert awaited(history.then(joins(1))) == ["node-1"], "a repeated first join says nothing"
    idle_since_s = history.state.idle_since_s
    assert awaited(history.then(joins(1, at_s=4.1))) == []
    assert history.state.idle_since_s == idle_since_s, "its jobs still hold their GPUs"


def test_nobody_waits_for_nodes_of_another_machine() -> None:
    history = starting(supervisor_of_node_1=7).then(joins(0, 1, at_s=4.0, heard_s=2.0, supervisor=2))
    assert awaited(history) == []


def test_all_nodes_are_awaited_if_a_living_monitor_would_have_reported_the_one_that_is_back() -> None:
    history = starting(3, supervisor_of_node_1=7).then(joins(0, 1, at_s=30.0, heard_s=2.0, supervisor=2))
    assert awaited(history) == ["node-1", "node-2"]
    history.then(joins(1, 1, at_s=31.0, heard_s=2.0, supervisor=8))
    assert awaited(history) == ["node-2"], "node-0 has just joined"


def test_executors_that_cannot_say_that_they_are_there_are_not_awaited() -> None:
    older = replace(joins(1), started_by="")
    history = History().configured().then(joins(0), older, joins(0, 1, at_s=30.0, heard_s=2.0, supervisor=2))
    assert awaited(history) == []


def test_an_executor_that_ended_by_itself_makes_nobody_wait() -> None:
    assert awaited(starting().then(joins(0, 1, at_s=4.0, heard_s=2.0))) == []


def decided(history: History, at_s: float) -> tuple[events.PlacementDecided, ...]:
    return decide(history.state, (), NOW_S + at_s)


def with_share(history: History, num_gpus: int) -> History:
    shares = {"a": num_gpus}
    return history.then(events.AllocationDecided(num_gpus_by_job=shares, valid_until_s=None, at_s=NOW_S + 4.0))


def test_placement_waits_for_an_awaited_node() -> None:
    history = with_share(restarted(), 8)
    assert decided(history, 4.1) == ()
    assert wake_at_s(history.state) is None
    history.then(joins(1, 1, at_s=5.0, heard_s=2.0, supervisor=2))
    (placed,) = decided(history, 5.0)
    assert len(placed.placements[0].gpus) == 8


def test_a_share_that_fits_on_the_others_is_placed_there_at_once() -> None:
    (placed,) = decided(with_share(restarted(), 4), 4.1)
    assert {gpu.node_id for gpu in placed.placements[0].gpus} == {"node-0"}


def test_survivors_on_an_awaited_node_are_not_relied_on() -> None:
    history = starting().then(
        events.PoolConfigured(config=replace(starting().state.config, stop_free=True), at_s=NOW_S)
    )
    history.started("a", at_s=NOW_S + 2.0).then(joins(0, 1, at_s=4.0, heard_s=3.0, supervisor=2))
    before = job(history).previous_generation
    assert before is not None
    assert [gpu.node_id for gpu in before.surviving] == ["node-1"]
    assert decided(with_share(history, 8), 4.1) == ()
