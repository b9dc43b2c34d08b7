"""A node with an announced end tells it when it joins, and leaves by itself."""

from dataclasses import replace

from elasticflow.services.executor.decisions.local_events_and_actions import BeginShutDown, EndNoticed, ShutDown
from elasticflow.services.executor.decisions.policy import executor_policy
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.service.ledger_encoding import event_id
from testbed.histories import NOW_S
from tests.support.executor_node import ExecutorNode, kinds, node_specification, stops

GRACE_S = 10.0


class EndingNode(ExecutorNode):
    """Ends 100 s from now, as it was started."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = executor_policy(replace(node_specification(), until_s=NOW_S + 100.0))
        self.state = self.policy.start(self.state.pool)


def announced(node: ExecutorNode, until_s: float | None) -> events.NodeEndAnnounced:
    return events.NodeEndAnnounced(
        node_id="node-0", incarnation=node.state.incarnation, until_s=until_s, at_s=node.now_s
    )


def test_it_joins_with_its_end_and_leaves_in_time() -> None:
    node = EndingNode().settle()
    (joined,) = node.emitted
    assert joined.until_s == NOW_S + 100.0
    assert node.policy.wake_at_s(node.state) == NOW_S + 100.0 - GRACE_S
    node.forget().at(NOW_S + 100.0 - GRACE_S - 0.1)
    assert (node.emitted, node.actions) == ([], [])
    node.at(NOW_S + 100.0 - GRACE_S)
    assert kinds(node.emitted) == [events.NodeLost]
    assert node.emitted[0].reason == "left"
    assert node.actions == [BeginShutDown(), ShutDown(replaced=False)]


def test_what_still_runs_at_its_end_stops_at_a_boundary() -> None:
    node = EndingNode().training(1).forget().at(NOW_S + 100.0 - GRACE_S)
    assert node.actions == [BeginShutDown(), *stops(0)]
    node.ends()
    assert kinds(node.emitted) == [events.NodeLost]


def test_the_operator_announces_moves_and_takes_back_an_end() -> None:
    node = ExecutorNode().settle().forget()
    node.ledger(announced(node, NOW_S + 50.0))
    assert node.state.leaves_at_s == NOW_S + 40.0
    node.ledger(announced(node, None)).at(NOW_S + 45.0)
    assert (node.actions, node.state.until_s) == ([], None)
    node.ledger(announced(node, NOW_S + 46.0))
    assert node.actions == [BeginShutDown(), ShutDown(replaced=False)]


def test_a_node_that_was_lost_joins_with_the_end_that_was_announced_last() -> None:
    node = EndingNode().settle()
    node.ledger(announced(node, NOW_S + 60.0)).forget()
    node.ledger(events.NodeLost(node_id="node-0", incarnation=node.state.incarnation, reason="silent", at_s=node.now_s))
    joined = node.emitted[-1]
    assert isinstance(joined, events.NodeJoined)
    assert joined.until_s == NOW_S + 60.0


def test_an_executor_that_is_started_again_leaves_at_the_end_that_was_announced_for_its_node() -> None:
    before = ExecutorNode().settle()
    before.ledger(announced(before, NOW_S + 50.0))
    node = ExecutorNode(before.state.pool, run_id="again").settle()
    assert [event.until_s for event in node.emitted_of(events.NodeJoined)] == [None], "only its operator knows"
    assert node.state.leaves_at_s == NOW_S + 50.0 - GRACE_S
    node.forget().at(NOW_S + 50.0 - GRACE_S)
    assert kinds(node.emitted) == [events.NodeLost]


# --- notices of the machine itself ---------------------------------------------------------------------


def told(node: ExecutorNode) -> list[tuple[float | None, float]]:
    """What it has told the ledger of its notices."""
    return [(event.until_s, event.at_s) for event in node.emitted_of(events.NodeEndNoticed)]


def notice(until_s: float | None, at_s: float) -> EndNoticed:
    return EndNoticed(until_s=until_s, at_s=at_s)


def test_a_notice_is_told_once_and_each_change_of_it() -> None:
    node = ExecutorNode().settle().note(notice(None, NOW_S))
    assert told(node) == []
    for number, end in enumerate((120.0, 120.0, 60.0, 120.0, None), start=1):
        node.note(notice(None if end is None else NOW_S + end, NOW_S + number))
    expected = [(120.0, 1.0), (60.0, 3.0), (120.0, 4.0), (None, 5.0)]
    assert told(node) == [(None if end is None else NOW_S + end, NOW_S + at) for end, at in expected]
    assert len({event_id(event) for event in node.emitted_of(events.NodeEndNoticed)}) == 4, (
        "none is dropped as a repeat"
    )
    assert node.state.until_s is None


def test_a_clock_that_is_set_back_loses_no_notice() -> None:
    node = ExecutorNode().settle().note(notice(NOW_S + 120.0, NOW_S + 50.0)).note(notice(NOW_S + 60.0, NOW_S - 900.0))
    assert node.state.until_s == NOW_S + 60.0


def test_a_notice_of_before_the_join_is_told_after_it() -> None:
    node = ExecutorNode()
    node.state = node.policy.observe(node.state, notice(NOW_S + 120.0, NOW_S), NOW_S)
    node.settle()
    assert kinds(node.emitted) == [events.NodeJoined, events.NodeEndNoticed]
    assert node.emitted[0].until_s is None
    assert node.state.leaves_at_s == NOW_S + 120.0 - GRACE_S
    node.forget().at(NOW_S + 120.0 - GRACE_S)
    assert node.actions == [BeginShutDown(), ShutDown(replaced=False)]


def test_a_node_that_was_lost_tells_its_notice_again_and_names_its_own_end() -> None:
    node = EndingNode().settle().note(notice(NOW_S + 60.0, NOW_S)).forget()
    node.ledger(events.NodeLost(node_id="node-0", incarnation=node.state.incarnation, reason="silent", at_s=node.now_s))
    assert [event.until_s for event in node.emitted] == [NOW_S + 100.0, NOW_S + 60.0]
    node.note(notice(None, NOW_S + 1.0))
    assert node.state.until_s == NOW_S + 100.0


def test_a_notice_does_not_contradict_what_the_operator_said_after_it() -> None:
    node = ExecutorNode().settle().note(notice(NOW_S + 60.0, NOW_S)).forget()
    node.ledger(announced(node, None)).at(NOW_S + 61.0)
    assert (node.emitted, node.actions) == ([], [])
