"""When nodes with an announced end are drained, and what the pool can promise until then."""

from dataclasses import replace
from typing import Literal

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.state.nodes import (
    CapacityDrop,
    PromisableGpus,
    ending_nodes,
    moves_of,
    next_drain_s,
    nodes_to_drain,
    promisable_of,
)
from testbed.histories import NOW_S, History, pool

LEAVE_S = 30.0


def ending(*num_gpus: int, until: dict[int, float], **config: object) -> History:
    """A pool of which some nodes have ends, in seconds from now."""
    history = pool(**config)
    for number, count in enumerate(num_gpus):
        until_s = NOW_S + until[number] if number in until else None
        joined = events.NodeJoined(
            node_id=f"node-{number}",
            incarnation=f"first-{number}",
            num_gpus=count,
            device="cpu",
            until_s=until_s,
            at_s=NOW_S,
        )
        history.then(joined)
    return history


def announced(number: int, until_s: float | None, at_s: float = NOW_S) -> events.NodeEndAnnounced:
    return events.NodeEndAnnounced(node_id=f"node-{number}", incarnation=f"first-{number}", until_s=until_s, at_s=at_s)


def drained(number: int, incarnation: str = "first") -> events.NodeDrainStarted:
    return events.NodeDrainStarted(node_id=f"node-{number}", incarnation=f"{incarnation}-{number}", at_s=NOW_S)


def promisable(history: History, reserve_nodes: int = 0) -> tuple[PromisableGpus, ...]:
    return promisable_of(history.state.nodes, reserve_nodes, LEAVE_S)


def test_gpus_are_promised_until_the_drain_of_their_node() -> None:
    assert promisable(pool(4, 2)) == (PromisableGpus(6),)
    history = ending(4, 2, 2, 8, until={1: 100.0, 2: 100.0, 3: 500.0})
    drops = (CapacityDrop(NOW_S + 70.0, 4), CapacityDrop(NOW_S + 470.0, 8))
    assert promisable(history) == (PromisableGpus(16, drops),)
    history.then(drained(1))
    assert history.state.num_gpus == 14
    assert promisable(history) == (PromisableGpus(14, (CapacityDrop(NOW_S + 70.0, 2), drops[1])),)


def test_a_reserve_keeps_the_largest_of_the_nodes_that_are_there_at_each_instant() -> None:
    history = ending(4, 2, 8, until={2: 100.0})
    kept, none = promisable(history, 1)
    assert kept == PromisableGpus(6, (CapacityDrop(NOW_S + 70.0, 4),))
    assert none == PromisableGpus(14, (CapacityDrop(NOW_S + 70.0, 8),))
    history.then(events.NodeLost(node_id="node-2", incarnation="first-2", reason="silent", at_s=NOW_S))
    assert promisable(history, 1)[0] == PromisableGpus(6, (CapacityDrop(NOW_S + 70.0, 4),)), (
        "the lost one is the reserve"
    )


def test_drops_of_fewer_gpus_never_exceed_them() -> None:
    drops = (CapacityDrop(1.0, 4), CapacityDrop(2.0, 3), CapacityDrop(3.0, 1))
    assert PromisableGpus(8, drops).limited_to(9) == PromisableGpus(8, drops)
    assert PromisableGpus(8, drops).limited_to(5) == PromisableGpus(5, (drops[0], CapacityDrop(2.0, 1)))


def test_a_drain_is_due_once_and_its_event_changes_nothing_twice() -> None:
    history = ending(2, 2, until={1: 100.0})
    assert next_drain_s(history.state) == NOW_S + 70.0
    assert nodes_to_drain(history.state, NOW_S + 69.0) == []
    assert [node.node_id for node in nodes_to_drain(history.state, NOW_S + 70.0)] == ["node-1"]
    history.then(drained(1, "other"))
    assert history.state.num_gpus == 4, "of another incarnation"
    history.then(drained(1), drained(1))
    assert (history.state.num_gpus, history.state.draining) == (2, {"node-1"})
    assert (next_drain_s(history.state), nodes_to_drain(history.state, NOW_S + 99.0)) == (None, [])


def test_an_end_may_move_and_be_taken_back() -> None:
    history = pool(2, 2).then(announced(1, NOW_S + 50.0))
    assert next_drain_s(history.state) == NOW_S + 20.0
    history.then(drained(1), announced(1, NOW_S + 500.0, at_s=NOW_S + 25.0))
    assert (history.state.num_gpus, next_drain_s(history.state)) == (4, NOW_S + 470.0)
    assert history.state.scheduling_event_sequence == history.state.sequence
    history.then(replace(announced(1, NOW_S + 1.0), incarnation="an earlier one"))
    assert next_drain_s(history.state) == NOW_S + 470.0
    history.then(announced(1, None))
    assert (next_drain_s(history.state), ending_nodes(history.state.nodes)) == (None, ())


def test_jobs_may_have_to_move_at_each_drain_ahead_and_while_one_lasts() -> None:
    history = ending(2, 2, 2, until={0: 100.0, 1: 100.0, 2: 300.0})
    ends = ending_nodes(history.state.nodes)
    assert moves_of(history.state, ends, NOW_S) == (NOW_S + 70.0, NOW_S + 270.0)
    assert moves_of(history.state, ends, NOW_S + 80.0) == (NOW_S + 270.0,), "no job is on the nodes that are drained"


def rejoined(number: int, *, until_s: float | None = None, at_s: float = NOW_S + 10.0) -> events.NodeJoined:
    """Its executor was started again."""
    return events.NodeJoined(
        node_id=f"node-{number}", incarnation="second", num_gpus=4, device="cpu", until_s=until_s, at_s=at_s
    )


@pytest.mark.parametrize("how", ["silent", "left", "restarted"])
def test_an_announced_end_outlasts_the_executor_of_its_node(how: Literal["silent", "left", "restarted"]) -> None:
    history = ending(4, 4, until={}).then(announced(1, NOW_S + 100.0), drained(1))
    if how != "restarted":
        history.then(events.NodeLost(node_id="node-1", incarnation="first-1", reason=how, at_s=NOW_S + 5.0))
    history.then(rejoined(1))
    node = history.state.nodes["node-1"]
    assert (node.until_s, node.end_announced_s, node.draining) == (NOW_S + 100.0, NOW_S, False)
    assert nodes_to_drain(history.state, NOW_S + 70.0) == [node]
    third = replace(rejoined(1), incarnation="third", at_s=NOW_S + 20.0)
    assert history.then(third).state.nodes["node-1"].until_s == NOW_S + 100.0


@pytest.mark.parametrize(
    ("own", "at", "kept"),
    [(50.0, 10.0, 50.0), (200.0, 10.0, 100.0), (100.0, 10.0, 100.0), (None, 100.0, None), (None, 500.0, None)],
    ids=["an earlier one of its own", "a later one of its own", "the same", "it is over", "it is over for long"],
)
def test_which_end_a_node_has_when_it_joins_again(own: float | None, at: float, kept: float | None) -> None:
    history = ending(4, 4, until={}).then(announced(1, NOW_S + 100.0))
    history.then(rejoined(1, until_s=None if own is None else NOW_S + own, at_s=NOW_S + at))
    assert history.state.nodes["node-1"].until_s == (None if kept is None else NOW_S + kept)


def test_an_end_that_was_taken_back_or_that_a_node_named_itself_ends_with_its_incarnation() -> None:
    taken_back = ending(4, 4, until={1: 100.0}).then(announced(1, None), rejoined(1))
    assert taken_back.state.nodes["node-1"].until_s is None
    own = ending(4, 4, until={1: 100.0}).then(rejoined(1))
    assert own.state.nodes["node-1"].until_s is None


# --- notices of the machine itself ---------------------------------------------------------------------


def noticed(until_s: float | None, at_s: float, number: int = 1) -> events.NodeEndNoticed:
    return events.NodeEndNoticed(node_id=f"node-{number}", incarnation=f"first-{number}", until_s=until_s, at_s=at_s)


def end_of_node(history: History, number: int = 1) -> float | None:
    return history.state.nodes[f"node-{number}"].until_s


def test_a_notice_is_given_moved_and_withdrawn() -> None:
    history = ending(2, 2, until={}).then(noticed(NOW_S + 120.0, NOW_S + 1.0))
    node = history.state.nodes["node-1"]
    assert (node.until_s, node.end_announced_s) == (NOW_S + 120.0, NOW_S + 1.0)
    assert history.state.scheduling_event_sequence == history.state.sequence
    history.then(drained(1), noticed(NOW_S + 300.0, NOW_S + 2.0))
    assert (end_of_node(history), history.state.num_gpus) == (NOW_S + 300.0, 4), "no longer drained"
    history.then(noticed(None, NOW_S + 3.0))
    assert (end_of_node(history), next_drain_s(history.state)) == (None, None)


def test_the_earlier_of_a_notice_and_the_end_that_is_known_counts() -> None:
    history = ending(2, 2, until={1: 1_000.0}).then(drained(0), noticed(NOW_S + 120.0, NOW_S + 1.0))
    assert end_of_node(history) == NOW_S + 120.0
    history.then(noticed(None, NOW_S + 2.0))
    assert end_of_node(history) == NOW_S + 1_000.0, "as the node named it"
    sequence = history.state.scheduling_event_sequence
    history.then(drained(1), noticed(NOW_S + 2_000.0, NOW_S + 3.0))
    assert (end_of_node(history), history.state.draining) == (NOW_S + 1_000.0, {"node-0", "node-1"})
    assert history.state.scheduling_event_sequence == sequence, "nothing to plan anew"


def test_the_operator_has_the_last_word_until_the_notice_changes() -> None:
    history = ending(2, 2, until={}).then(noticed(NOW_S + 120.0, NOW_S + 1.0), announced(1, None, NOW_S + 2.0))
    assert end_of_node(history) is None
    history.then(noticed(NOW_S + 90.0, NOW_S + 3.0))
    assert end_of_node(history) == NOW_S + 90.0
    history.then(announced(1, NOW_S + 50.0, NOW_S + 4.0), noticed(NOW_S + 80.0, NOW_S + 5.0))
    assert end_of_node(history) == NOW_S + 50.0
    history.then(noticed(None, NOW_S + 6.0))
    assert end_of_node(history) == NOW_S + 50.0


def test_a_notice_that_is_late_repeated_or_of_another_incarnation_changes_nothing() -> None:
    history = ending(2, 2, until={}).then(noticed(NOW_S + 120.0, NOW_S + 1.0), noticed(None, NOW_S + 2.0))
    known = history.state.nodes
    for late in (noticed(NOW_S + 120.0, NOW_S + 1.0), noticed(NOW_S + 99.0, NOW_S + 2.0)):
        assert history.then(late).state.nodes == known
    history.then(replace(noticed(NOW_S + 9.0, NOW_S + 9.0), incarnation="an earlier one"))
    history.then(noticed(NOW_S + 9.0, NOW_S + 9.0, number=7))
    assert history.state.nodes == known


def test_a_notice_ends_with_the_incarnation_and_what_the_operator_announced_does_not() -> None:
    """The executor that is started again reads the notice anew, and then knows whether it still holds."""
    alone = ending(4, 4, until={}).then(noticed(NOW_S + 120.0, NOW_S + 1.0), rejoined(1))
    assert (end_of_node(alone), alone.state.nodes["node-1"].notice) == (None, None)
    both = ending(4, 4, until={}).then(announced(1, NOW_S + 500.0), noticed(NOW_S + 120.0, NOW_S + 1.0), rejoined(1))
    assert end_of_node(both) == NOW_S + 500.0
    taken_back = ending(4, 4, until={}).then(noticed(NOW_S + 120.0, NOW_S + 1.0), announced(1, None), rejoined(1))
    assert end_of_node(taken_back) is None
