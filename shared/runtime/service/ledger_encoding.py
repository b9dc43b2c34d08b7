"""How the outputs of a policy become messages: one decision by compare-and-set, events on their own subjects."""

import hashlib
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar, cast, get_args

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import (
    EpochBegan,
    Event,
    GpuFailing,
    JobEvent,
    LoadReport,
    NodeEndNoticed,
    NodeEvent,
    NodeJoined,
    NodeLost,
    PlanDecided,
    PlanEvent,
    SnapshotSaved,
)
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES, MAX_TEXT_LENGTH, Text
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.policy import Policy

MAX_HEADER_BYTES = 4096  # of an envelope: its id, and that of its cause

PLAN_EVENTS = get_args(PlanEvent)
JOB_EVENTS = get_args(JobEvent)
LOAD_REPORTS = get_args(LoadReport)
REPORTED_EVENTS = (*get_args(NodeEvent), *JOB_EVENTS, *LOAD_REPORTS, EpochBegan, SnapshotSaved)


def ledger_message(subject: str, data: bytes) -> Event | PlanDecided:
    """The event or decision in these bytes. Raises Undecodable, also for a message that belongs on another subject.

    Otherwise a message on another subject could evade the compare-and-set of the plan.
    """
    message = codec.decode(data).message
    pool = "".join(subject.split(".")[2:3])
    if isinstance(message, PlanDecided) and subject == subjects.plan(pool):
        return message
    if isinstance(message, REPORTED_EVENTS) and subject in _subjects_of(pool, cast(Event, message)):
        return cast(Event, message)
    raise codec.Undecodable(f"type: {type(message).__name__} has no place on {subject}")


def read_message(stored: LedgerRecord) -> LedgerMessage:
    """The message, or what is known of an unreadable one."""
    try:
        return ledger_message(stored.subject, stored.data)
    except codec.Undecodable as error:
        on_plan = stored.subject == subjects.plan(stored.subject.split(".")[2])
        return Unreadable(on_plan=on_plan, problems=error.problems)


def subject_of(pool: str, event: Event) -> str:
    """The ledger subject on which this event belongs."""
    if isinstance(event, NodeJoined | NodeLost | NodeEndNoticed | GpuFailing):
        return subjects.node(pool, event.node_id)
    if isinstance(event, LOAD_REPORTS):
        return subjects.load(pool, cast(LoadReport, event).load_id)
    if isinstance(event, EpochBegan):
        return subjects.epoch(pool)
    if isinstance(event, SnapshotSaved):
        return subjects.snapshot(pool, event.shape)
    assert isinstance(event, JOB_EVENTS), type(event)
    return subjects.job(pool, cast(JobEvent, event).job_id, getattr(event, "node_id", None) or "")


def _subjects_of(pool: str, event: Event) -> tuple[str, ...]:
    """The subjects where readers accept it, also the job's own: only services may use that, and older executors did."""
    own = subject_of(pool, event)
    return (own, subjects.job(pool, cast(JobEvent, event).job_id)) if isinstance(event, JOB_EVENTS) else (own,)


def dead_letter_headers(subject: str, problems: tuple[str, ...]) -> dict[str, str]:
    """The headers of a dead letter: where the message arrived, and why it is unreadable."""
    return {"Ef-Subject": subject, "Ef-Reason": "; ".join(problems)[:1000].replace("\n", " ")}


def event_id(event: Event) -> str:
    """The same for each report of the same event, so without the time of the report.

    A node that joins once more says something new: that it is there. A notice of its end may return to an earlier time,
    and a GPU fails for longer than it counts as slow.
    """
    is_timeless = hasattr(event, "at_s") and not isinstance(event, NodeJoined | NodeEndNoticed | GpuFailing)
    timeless = replace(event, at_s=0.0) if is_timeless else event
    return f"{type(event).__name__}-{_digest(timeless)}"


def decision_id(decision: PlanDecided, instance: str) -> str:
    """Derived from the decision and its basis; instance distinguishes replicas that decide the same.

    Raises TooLarge if one message cannot hold the decision.
    """
    return f"{decision.service}-{decision.based_on}-{instance}-{_digest(decision)}"


def fitted(decision: PlanDecided, instance: str, policy: Policy[Any]) -> tuple[PlanDecided, str]:
    """The decision, shortened until one message holds it, and its id.

    Raises TooLarge if there is no shorter one with the answers to all its commands.
    """
    while True:
        try:
            return decision, decision_id(decision, instance)
        except TooLarge:
            less = policy.shorten(decision.events)
            if less is None or _loses_an_answer(decision, less, policy):
                raise
            decision = replace(decision, events=less)


def _loses_an_answer(decision: PlanDecided, less: tuple[PlanEvent, ...], policy: Policy[Any]) -> bool:
    kept = {id(event) for event in less}
    lost = [event for event in decision.events if id(event) not in kept]
    return any(policy.user_replies.is_answer(event, command) for command in decision.commands for event in lost)


def split(outputs: tuple[Any, ...]) -> tuple[tuple[PlanEvent, ...], tuple[Event, ...], tuple[Any, ...]]:
    """The decision's events, reported events, actions: each in its order.

    A text that was as long as a text may be, and became a part of a sentence, loses its end: no reader would take it.
    """
    plan = tuple(_with_bounded_texts(output) for output in outputs if isinstance(output, PLAN_EVENTS))
    reported = tuple(_with_bounded_texts(output) for output in outputs if isinstance(output, REPORTED_EVENTS))
    actions = tuple(output for output in outputs if not isinstance(output, PLAN_EVENTS + REPORTED_EVENTS))
    return plan, reported, actions


SomeEvent = TypeVar("SomeEvent", bound=PlanEvent | Event)


def _with_bounded_texts(event: SomeEvent) -> SomeEvent:
    texts = {name: cast(str, getattr(event, name)) for name in _text_fields(type(event))}
    long = {name: text[:MAX_TEXT_LENGTH] for name, text in texts.items() if len(text) > MAX_TEXT_LENGTH}
    return replace(event, **long) if long else event


@cache
def _text_fields(event_type: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(event_type) if field.type is Text)


def _digest(message: Any) -> str:
    data = codec.encode(message, id="", recorded_at_s=0.0, max_bytes=MAX_MESSAGE_BYTES - MAX_HEADER_BYTES)
    return hashlib.blake2b(data, digest_size=10).hexdigest()
