"""Which message belongs on which subject of the ledger, and which is the same as another."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import (
    JobRejected,
    NodeJoined,
    PlanDecided,
    WorkerCrashed,
    WorkersStopped,
)
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.limits import MAX_TEXT_LENGTH
from elasticflow.shared.runtime.service.ledger_encoding import event_id, read_message, split
from elasticflow.shared.state.fold.ledger_fold import Unreadable

DECISION = PlanDecided(service="placement", based_on=1, now_s=0.0, events=())
STOPPED = WorkersStopped(job_id="a", generation=1, node_id="n", at_s=0.0)


def read(message: Any, subject: str) -> Any:
    data = codec.encode(message, id="1", recorded_at_s=0.0)
    return read_message(LedgerRecord(sequence=1, subject=subject, message_id="1", stored_at_s=0.0, data=data))


@pytest.mark.parametrize(
    ("message", "subject"),
    [
        (DECISION, subjects.plan("p")),
        (STOPPED, subjects.job("p", "a", "n")),
        (STOPPED, subjects.job("p", "a")),  # of older executors
    ],
)
def test_a_message_on_its_subject_is_read(message: Any, subject: str) -> None:
    assert read(message, subject) == message


@pytest.mark.parametrize(
    ("message", "subject", "on_plan"),
    [
        (DECISION, subjects.job("p", "a", "n"), False),  # it would evade the compare-and-set of the plan
        (STOPPED, subjects.plan("p"), True),
        (STOPPED, subjects.job("p", "b", "n"), False),
        (STOPPED, subjects.job("p", "a", "m"), False),  # of another node
    ],
)
def test_a_message_on_another_subject_is_not_read(message: Any, subject: str, on_plan: bool) -> None:
    unread = read(message, subject)
    assert isinstance(unread, Unreadable)
    assert unread.on_plan is on_plan
    assert "has no place on" in unread.problems[0]


def test_an_event_that_is_reported_later_again_is_the_same_message() -> None:
    """So the server stores it once, however often an executor reports it."""
    assert event_id(replace(STOPPED, at_s=9.0)) == event_id(STOPPED)
    assert event_id(replace(STOPPED, generation=2)) != event_id(STOPPED)


def test_a_node_that_says_again_that_it_is_there_is_no_repeat() -> None:
    """Within two minutes the server would drop it, and planners would wait for the node."""
    joined = NodeJoined(node_id="n", incarnation="one", num_gpus=1, device="cpu", at_s=0.0)
    assert event_id(replace(joined, at_s=9.0)) != event_id(joined)


def test_a_text_that_has_become_too_long_in_a_sentence_makes_no_message_unreadable() -> None:
    """Planners would wait for their operator, or the event would be as if it had not been."""
    said = "rank 0 on n " + "x" * MAX_TEXT_LENGTH
    crashed = WorkerCrashed(job_id="a", generation=1, node_id="n", rank=0, explanation=said, at_s=0.0)
    rejected = JobRejected(job_id="a", tenant="t", spec=None, reason="unrunnable", explanation=said, at_s=0.0)
    plan, reported, actions = split((crashed, rejected, "an action"))
    assert actions == ("an action",)
    decision = replace(DECISION, events=plan)
    assert read(decision, subjects.plan("p")) == decision
    (event,) = reported
    assert read(event, subjects.job("p", "a", "n")) == event
    assert event == replace(crashed, explanation=said[:MAX_TEXT_LENGTH])
    assert split((STOPPED,))[1][0] is STOPPED
