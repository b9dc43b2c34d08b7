"""Where snapshots are stored: one object for each pool, which the monitor replaces."""

import asyncio
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import ElasticFlowError, NotFound
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.pool import PoolState

MAX_BYTES = 1 << 30
NAME = f"chained-{snapshot_encoding.SHAPE}"
_CHAIN_LENGTH = 32  # characters, before the state


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A folded state, and the digest of the messages of which it is made (docs/adr/0060)."""

    state: PoolState
    chain: str

    def ledger_chain(self) -> LedgerChain:
        return LedgerChain(self.state.sequence, self.chain)


def encode(snapshot: Snapshot) -> bytes:
    return snapshot.chain.encode() + snapshot_encoding.dump(snapshot.state)


def decode(data: bytes) -> Snapshot:
    """Raises Undecodable."""
    try:
        chain = data[:_CHAIN_LENGTH].decode("ascii")
        bytes.fromhex(chain)
    except ValueError as error:
        raise Undecodable("damaged snapshot: it has no chain") from error
    return Snapshot(state=snapshot_encoding.load(data[_CHAIN_LENGTH:]), chain=chain)


async def load(bus: Bus, pool: str, log: Any) -> Snapshot | None:
    """The newest snapshot, or None if none is readable: then the host folds the whole ledger."""
    try:
        snapshot = decode(await bus.get_object(streams.snapshot_bucket(pool), NAME, max_bytes=MAX_BYTES))
        last_sequence = await bus.last_sequence(pool)
    except NotFound:
        return None
    except (Undecodable, ElasticFlowError) as error:
        log.warning("snapshot not used", error=str(error))
        return None
    state = snapshot.state
    if state.unreadable_plan_sequence:  # this reader may be newer than the one that saved it, and able to read all
        log.warning("snapshot not used", error=f"made without plan message {state.unreadable_plan_sequence}")
        return None
    if state.sequence > last_sequence:  # of another ledger: this one is newer
        log.warning("snapshot not used", error=f"sequence {state.sequence} is beyond the ledger's {last_sequence}")
        return None
    log.info("snapshot loaded", sequence=state.sequence)
    return snapshot


async def save(bus: Bus, pool: str, snapshot: Snapshot) -> None:
    """Store it for the next start. Raises what the bus raises; without a snapshot nothing is lost."""
    data = await asyncio.to_thread(encode, snapshot)  # a large one takes seconds, and heartbeats go on
    await bus.put_object(streams.snapshot_bucket(pool), NAME, data)
