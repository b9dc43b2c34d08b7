"""The end of a node, announced by the operator: appended to the plan by compare-and-set, as every decision."""

import os

from elasticflow.client.ledger import LedgerView
from elasticflow.errors import UnknownNode
from elasticflow.shared.errors import Reload
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import NodeEndAnnounced, PlanDecided
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.service.ledger_encoding import decision_id

_CONNECT_WAIT_S = 5.0
NOW = -1.0  # as a time: as soon as its jobs can have moved


async def announce_node_end(url: str, pool: str, node_id: str, until_s: float | None, clock: Clock) -> NodeEndAnnounced:
    """Announce or move the end of a node that is there. until_s: None takes an announcement back; `NOW`: at once.

    Raises UnknownNode if no such node is there.
    """
    access = NatsAccess.from_environment(os.environ)
    bus = await connect_nats(url, name="eflow-drain", wait_s=_CONNECT_WAIT_S, access=access)
    try:
        while (announced := await _announced(bus, pool, node_id, until_s, clock)) is None:
            pass
        return announced
    finally:
        await bus.close()


async def _announced(
    bus: NatsBus, pool: str, node_id: str, until_s: float | None, clock: Clock
) -> NodeEndAnnounced | None:
    """What was announced; None if another decision won the compare-and-set."""
    plan_end = await bus.last_subject_sequence(subjects.plan(pool))
    state = await LedgerView(bus, pool).state()
    node = state.nodes.get(node_id)
    if node is None or not node.alive:
        raise UnknownNode(node_id, pool)
    now_s = clock.now_s()
    announced = NodeEndAnnounced(
        node_id=node_id,
        incarnation=node.incarnation,
        until_s=now_s + state.config.leave_s if until_s == NOW else until_s,
        at_s=now_s,
    )
    decision = PlanDecided(service="operator", based_on=state.sequence, now_s=now_s, events=(announced,))
    message_id = decision_id(decision, "eflow-drain")
    try:
        await bus.append(
            subjects.plan(pool),
            codec.encode(decision, id=message_id, recorded_at_s=now_s),
            message_id=message_id,
            expected_last_subject_sequence=plan_end,
        )
    except Reload:
        return None
    return announced
