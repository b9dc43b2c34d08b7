"""Where snapshots are stored: one object for each pool, which the monitor replaces."""

import asyncio
from typing import Any

from elasticflow.shared.errors import ElasticFlowError, NotFound
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.pool import PoolState

MAX_BYTES = 1 << 30
_NAME = f"pool-{snapshot_encoding.SHAPE}"


async def load(bus: Bus, pool: str, log: Any) -> PoolState | None:
    """The newest snapshot, or None if none is readable: then the host folds the whole ledger."""
    try:
        state = snapshot_encoding.load(await bus.get_object(streams.snapshot_bucket(pool), _NAME, max_bytes=MAX_BYTES))
        last_sequence = await bus.last_sequence(pool)
    except NotFound:
        return None
    except (Undecodable, ElasticFlowError) as error:
        log.warning("snapshot not used", error=str(error))
        return None
    if state.unreadable_plan_sequence:  # this reader may be newer than the one that saved it, and able to read all
        log.warning("snapshot not used", error=f"made without plan message {state.unreadable_plan_sequence}")
        return None
    if state.sequence > last_sequence:  # of another ledger: this one is newer
        log.warning("snapshot not used", error=f"sequence {state.sequence} is beyond the ledger's {last_sequence}")
        return None
    log.info("snapshot loaded", sequence=state.sequence)
    return state


async def save(bus: Bus, pool: str, state: PoolState) -> None:
    """Store this state for the next start. Raises what the bus raises; without a snapshot nothing is lost."""
    data = await asyncio.to_thread(snapshot_encoding.dump, state)  # a large one takes seconds, and heartbeats go on
    await bus.put_object(streams.snapshot_bucket(pool), _NAME, data)
