"""What a result turns into on the bus: one decision by compare-and-set, facts on their own subjects."""

import hashlib
from dataclasses import replace
from typing import Any, cast, get_args

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import (
    AdmissionEvent,
    AllocationDecided,
    Event,
    JobEvent,
    NodeEvent,
    NodeJoined,
    NodeLost,
    PlanDecided,
    PlanEvent,
)
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES

MAX_HEADER_BYTES = 4096  # of an envelope: its id, and that of its cause

PLAN_EVENTS = get_args(PlanEvent)
ADMISSION_EVENTS = get_args(AdmissionEvent)
NODE_EVENTS = get_args(NodeEvent)
JOB_EVENTS = get_args(JobEvent)
REPORTED_EVENTS = (*NODE_EVENTS, *JOB_EVENTS)


def ledger_message(subject: str, data: bytes) -> Event | PlanDecided:
    """The fact or decision in these bytes. Raises Undecodable, also for a message that belongs elsewhere.

    What is decided by compare-and-set on one subject must not slip in on another.
    """
    message = codec.decode(data).message
    pool = "".join(subject.split(".")[2:3])
    if isinstance(message, PlanDecided) and subject == subjects.plan(pool):
        return message
    if isinstance(message, REPORTED_EVENTS) and subject == subject_of(pool, cast(Event, message)):
        return cast(Event, message)
    raise codec.Undecodable(f"type: {type(message).__name__} has no place on {subject}")


def admission_events(plan: tuple[PlanEvent, ...]) -> list[AdmissionEvent]:
    """What admission said, of a decision's events."""
    return [cast(AdmissionEvent, event) for event in plan if isinstance(event, ADMISSION_EVENTS)]


def subject_of(pool: str, event: Event) -> str:
    """The ledger subject on which this fact belongs."""
    if isinstance(event, NodeJoined | NodeLost):
        return subjects.node(pool, event.node_id)
    assert isinstance(event, JOB_EVENTS), type(event)
    return subjects.job(pool, cast(JobEvent, event).job_id)


def dead_letter_headers(subject: str, problems: tuple[str, ...]) -> dict[str, str]:
    """What goes with the bytes of a message that nobody could read: where it came, and why it was put aside."""
    return {"Ef-Subject": subject, "Ef-Reason": "; ".join(problems)[:1000].replace("\n", " ")}


def event_id(event: Event) -> str:
    """The same fact has the same id, whenever it is told again: the time of telling is left out."""
    timeless = replace(event, at_s=0.0) if hasattr(event, "at_s") else event
    return f"{type(event).__name__}-{_digest(timeless)}"


def decision_id(decision: PlanDecided, holder: str) -> str:
    """Derived from what was decided on what; holder keeps two replicas with one thought apart.

    Raises TooLarge where one message does not hold the decision."""
    return f"{decision.service}-{decision.based_on}-{holder}-{_digest(decision)}"


def fitted(decision: PlanDecided, holder: str) -> tuple[PlanDecided, str]:
    """As much of a decision as one message holds, and its id. Raises TooLarge where nothing may be left out."""
    while True:
        try:
            return decision, decision_id(decision, holder)
        except TooLarge:
            less = _less(decision.events)
            if less is None:
                raise
            decision = replace(decision, events=less)


def _less(plan: tuple[PlanEvent, ...]) -> tuple[PlanEvent, ...] | None:
    """Less of a decision that is a decision too; None if there is none.

    Each event of admission is judged on what the ones before it left: any beginning of them stands, and the rest is
    decided next. An allocation stands without its new schedules: then the recorded ones stay, all of one plan, and
    who plans next keeps of them what still holds (`AdmissionPlan.build`). A placement is all or nothing: a job
    moves to where another leaves.
    """
    if len(plan) > 1 and all(isinstance(event, ADMISSION_EVENTS) for event in plan):
        return plan[: len(plan) // 2]
    less = tuple(
        replace(e, planned={}) if isinstance(e, AllocationDecided) and e.planned else e for e in plan
    )
    return None if less == plan else less


def _digest(message: Any) -> str:
    data = codec.encode(message, id="", recorded_at_s=0.0, max_bytes=MAX_MESSAGE_BYTES - MAX_HEADER_BYTES)
    return hashlib.blake2b(data, digest_size=10).hexdigest()


def split(outputs: tuple[Any, ...]) -> tuple[tuple[PlanEvent, ...], tuple[Event, ...], tuple[Any, ...]]:
    """Decisions, facts, actions: each in its order."""
    plan = tuple(output for output in outputs if isinstance(output, PLAN_EVENTS))
    facts = tuple(output for output in outputs if isinstance(output, NODE_EVENTS + JOB_EVENTS))
    actions = tuple(
        output for output in outputs if not isinstance(output, PLAN_EVENTS + NODE_EVENTS + JOB_EVENTS)
    )
    return plan, facts, actions
