"""Where snapshots are kept: one object for each pool, replaced now and then by the monitor."""

import asyncio
from typing import Any

from shared.errors import ElasticFlowError, NotFound
from shared.messages import snapshot
from shared.messages.codec import Undecodable
from shared.messages.pool_state import PoolState
from shared.runtime import streams
from shared.runtime.bus import Bus

_NAME = f"pool-{snapshot.SHAPE}"


async def load(bus: Bus, pool: str, log: Any) -> PoolState | None:
    """The newest snapshot, or None if there is none that can be read: then the ledger tells it all."""
    try:
        state = snapshot.load(await bus.get_object(streams.snapshot_bucket(pool), _NAME))
        last_sequence = await bus.last_sequence(pool)
    except NotFound:
        return None
    except (Undecodable, ElasticFlowError) as error:
        log.warning("snapshot not used", error=str(error))
        return None
    if state.sequence > last_sequence:  # of another ledger: this one was started anew
        log.warning(
            "snapshot not used", error=f"sequence {state.sequence} is beyond the ledger's {last_sequence}"
        )
        return None
    log.info("snapshot loaded", sequence=state.sequence)
    return state


async def save(bus: Bus, pool: str, state: PoolState) -> None:
    """Keep this state for the next start. Raises what the bus raises; losing a snapshot loses nothing."""
    data = await asyncio.to_thread(snapshot.dump, state)  # a large one takes a while, and heartbeats go on
    await bus.put_object(streams.snapshot_bucket(pool), _NAME, data)
