"""A pool is made and configured: the operator's decision, on the plan as all others."""

from dataclasses import replace

from elasticflow.ledger_view import LedgerView
from shared.errors import Reload
from shared.messages import codec, subjects
from shared.messages.cluster import PoolConfig
from shared.messages.events import PlanDecided, PoolConfigured
from shared.runtime.clock import Clock
from shared.runtime.nats_bus import NatsBus, connect_nats
from shared.runtime.outbox import decision_id
from shared.runtime.streams import StreamLimits

_CONNECT_WAIT_S = 5.0


async def configure(
    url: str,
    pool: str,
    wanted: PoolConfig | None,
    clock: Clock,
    *,
    confidence: float | None = None,
    stream_replicas: int = 1,
) -> None:
    """Make the pool, and make its configuration the wanted one, by compare-and-set as every decision.

    wanted: None leaves a configured pool as it is, and gives a new one the defaults. confidence: goes before theirs.
    """
    limits = StreamLimits(replicas=stream_replicas)
    bus = await connect_nats(url, name="eflow-up", wait_s=_CONNECT_WAIT_S, limits=limits)
    try:
        await bus.ensure_pool(pool)
        while not await _configured(bus, pool, wanted, confidence, clock):
            pass
    finally:
        await bus.close()


async def _configured(
    bus: NatsBus, pool: str, wanted: PoolConfig | None, confidence: float | None, clock: Clock
) -> bool:
    """True if the pool has the wanted configuration now; False if a rival decision came between."""
    plan_end = await bus.last_subject_sequence(subjects.plan(pool))
    state = await LedgerView(bus, pool).state()
    wanted = wanted or (state.config if state.configured else PoolConfig())
    if confidence is not None:
        wanted = replace(wanted, confidence=confidence)
    if state.configured and state.config == wanted:
        return True
    now_s = clock.now_s()
    decision = PlanDecided(
        service="operator",
        based_on=state.sequence,
        now_s=now_s,
        events=(PoolConfigured(config=wanted, at_s=now_s),),
    )
    message_id = decision_id(decision, "eflow-up")
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
