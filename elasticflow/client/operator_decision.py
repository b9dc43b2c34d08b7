"""Decisions of the operator, appended to the plan by compare-and-set as every decision."""

from elasticflow.shared.errors import Reload
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import PlanDecided, PlanEvent
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.runtime.service.ledger_encoding import decision_id


async def append_decision(
    bus: NatsBus, pool: str, event: PlanEvent, *, based_on: int, plan_end: int, now_s: float, sender: str
) -> bool:
    """Whether it was appended; False if another decision won. plan_end: the last sequence of the plan before the state
    was read, on which the decision rests."""
    decision = PlanDecided(service="operator", based_on=based_on, now_s=now_s, events=(event,))
    message_id = decision_id(decision, sender)
    try:
        await bus.append(
            subjects.plan(pool),
            codec.encode(decision, id=message_id, recorded_at_s=now_s),
            message_id=message_id,
            expected_last_subject_sequence=plan_end,
        )
    except Reload:
        return False
    return True
