"""The end of a node, announced by the operator: as a decision."""

import os

from elasticflow.client.ledger import LedgerView
from elasticflow.client.operator_decision import append_decision
from elasticflow.errors import UnknownNode
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.events import NodeEndAnnounced
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.nats_access import NatsAccess

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
    has_won = await append_decision(
        bus, pool, announced, based_on=state.sequence, plan_end=plan_end, now_s=now_s, sender="eflow-drain"
    )
    return announced if has_won else None
