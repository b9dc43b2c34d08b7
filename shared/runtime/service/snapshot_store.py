"""Where snapshots are stored: one object for each pool, which the monitor replaces, and one for each of its epochs.

The message with which an epoch begins names the digest of its snapshot (docs/adr/0061).
"""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import DamagedObject, ElasticFlowError, EpochUnusable, NotFound, UnknownStream
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.messages.events import EpochBegan
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.with_retry import with_retry
from elasticflow.shared.runtime.service.ledger_encoding import read_message
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """sequence: of the message with which it began."""

    sequence: int
    began: EpochBegan


def encode(snapshot: Snapshot) -> bytes:
    return snapshot.chain.encode() + snapshot_encoding.dump(snapshot.state)


def decode(data: bytes, *, of_any_shape: bool = False) -> Snapshot:
    """Raises Undecodable."""
    try:
        chain = data[:_CHAIN_LENGTH].decode("ascii")
        bytes.fromhex(chain)
    except ValueError as error:
        raise Undecodable("damaged snapshot: it has no chain") from error
    state = snapshot_encoding.load(data[_CHAIN_LENGTH:], of_any_shape=of_any_shape)
    return Snapshot(state=state, chain=chain)


async def load(bus: Bus, pool: str, log: Any) -> Snapshot | None:
    """The newest snapshot, or None if none is readable: then the host folds the whole ledger.

    Raises EpochUnusable, and Unavailable where no server answers for long.
    """
    own = await _newest_own(bus, pool, log)
    epoch = await newest_epoch(bus, pool)
    if epoch is None or (own is not None and own.state.sequence >= epoch.began.based_on):
        return own
    try:
        snapshot = await of_epoch(bus, pool, epoch.began)
    except EpochUnusable as error:
        folded = 0 if own is None else own.state.sequence
        if folded + 1 < (await with_retry(bus.ledger_end, pool)).first:
            raise
        log.warning("snapshot not used", error=str(error))
        return own
    log.info("snapshot loaded", sequence=snapshot.state.sequence, of_fold=epoch.began.fold)
    return snapshot


async def beginning(bus: Bus, pool: str) -> PoolState:
    """The state before the oldest message of the ledger. Raises EpochUnusable, UnknownStream, Unavailable."""
    if (await with_retry(bus.ledger_end, pool)).first == 1:
        return PoolState()
    epoch = await newest_epoch(bus, pool)
    return PoolState() if epoch is None else (await of_epoch(bus, pool, epoch.began)).state


async def newest_epoch(bus: Bus, pool: str) -> Epoch | None:
    """None in the first one."""
    try:
        record = await with_retry(bus.last_record, subjects.epoch(pool))
    except UnknownStream:
        return None
    if record is None or not isinstance(began := read_message(record), EpochBegan):
        return None
    return Epoch(sequence=record.sequence, began=began)


async def of_epoch(bus: Bus, pool: str, began: EpochBegan) -> Snapshot:
    """The snapshot with which an epoch began. Raises EpochUnusable, Unavailable."""
    bucket, name = streams.snapshot_bucket(pool), epoch_object(began.snapshot)
    try:
        data = await with_retry(bus.get_object, bucket, name, max_bytes=MAX_BYTES)
        if hashlib.sha256(data).hexdigest() != began.snapshot:
            raise Undecodable("it is not the one that the ledger names")
        return decode(data, of_any_shape=True)
    except (NotFound, DamagedObject, Undecodable) as error:
        raise EpochUnusable(pool, began.based_on, bucket, name, str(error)) from error


def epoch_object(digest: str) -> str:
    """The name of a snapshot with which an epoch began."""
    return f"epoch-{digest}"


async def save(bus: Bus, pool: str, snapshot: Snapshot) -> None:
    """Store it for the next start. Raises what the bus raises; without a snapshot nothing is lost."""
    data = await asyncio.to_thread(encode, snapshot)  # a large one takes seconds, and heartbeats go on
    await bus.put_object(streams.snapshot_bucket(pool), NAME, data)


async def _newest_own(bus: Bus, pool: str, log: Any) -> Snapshot | None:
    """The one that a monitor of this fold and shape has saved."""
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
