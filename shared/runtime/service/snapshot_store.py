"""The store of snapshots: the newest that the monitor has saved, and one for each epoch of the ledger.

A message of the ledger names the digest of each of them, so that no other state is read (docs/adr/0061, 0078).
"""

import asyncio
import hashlib
import math
from dataclasses import dataclass
from typing import Any

from elasticflow.shared.errors import DamagedObject, ElasticFlowError, EpochUnusable, NotFound, UnknownStream
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.events import EpochBegan, SnapshotSaved
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus, with_retry
from elasticflow.shared.runtime.service.ledger_encoding import event_id, read_message, subject_of
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState

MAX_BYTES = 1 << 30
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
    """The newest epoch of the ledger; None in the first one."""
    sequence, began = await _last(bus, subjects.epoch(pool))
    return Epoch(sequence=sequence, began=began) if isinstance(began, EpochBegan) else None


async def of_epoch(bus: Bus, pool: str, began: EpochBegan) -> Snapshot:
    """The snapshot with which an epoch began. Raises EpochUnusable, Unavailable."""
    bucket, name = streams.snapshot_bucket(pool), epoch_object(began.snapshot)
    try:
        return decode(await _object(bus, bucket, name, began.snapshot), of_any_shape=True)
    except (NotFound, DamagedObject, Undecodable) as error:
        raise EpochUnusable(pool, began.based_on, bucket, name, str(error)) from error


def epoch_object(digest: str) -> str:
    """The name of a snapshot with which an epoch began."""
    return f"epoch-{digest}"


async def newest_saved(bus: Bus, pool: str) -> SnapshotSaved | None:
    """What the ledger says of the newest snapshot that this version can read. Raises Unavailable."""
    _, saved = await _last(bus, subjects.snapshot(pool, snapshot_encoding.SHAPE))
    return saved if isinstance(saved, SnapshotSaved) else None


def saved_object(digest: str) -> str:
    """The name of a snapshot that the monitor has saved."""
    return f"saved-{digest}"


async def save(bus: Bus, pool: str, snapshot: Snapshot, now_s: float) -> None:
    """Store it for the next start, and name it in the ledger; then delete the one before.

    Raises what the bus raises; without a snapshot nothing is lost.
    """
    before = await newest_saved(bus, pool)
    data = await asyncio.to_thread(encode, snapshot)  # a large one takes seconds, and heartbeats go on
    digest, bucket = hashlib.sha256(data).hexdigest(), streams.snapshot_bucket(pool)
    await bus.put_object(bucket, saved_object(digest), data)
    saved = SnapshotSaved(based_on=snapshot.state.sequence, snapshot=digest, shape=snapshot_encoding.SHAPE, at_s=now_s)
    message_id = event_id(saved)
    message = codec.encode(saved, id=message_id, recorded_at_s=now_s)
    await bus.append(subject_of(pool, saved), message, message_id=message_id)
    if before is not None and before.snapshot != digest:
        replaced = saved_object(before.snapshot)
        await bus.delete_old_objects(bucket, before_s=math.inf, is_needed=lambda name: name != replaced)


async def _newest_own(bus: Bus, pool: str, log: Any) -> Snapshot | None:
    """The one that a monitor of this fold and shape has saved last, if it is the one that the ledger names."""
    try:
        snapshot = await _saved(bus, pool)
    except (Undecodable, ElasticFlowError) as error:
        log.warning("snapshot not used", error=str(error))
        return None
    if snapshot is None:
        return None
    state = snapshot.state
    if state.unreadable_plan_sequence:  # this reader may be newer than the one that saved it, and able to read all
        log.warning("snapshot not used", error=f"made without plan message {state.unreadable_plan_sequence}")
        return None
    log.info("snapshot loaded", sequence=state.sequence)
    return snapshot


async def _saved(bus: Bus, pool: str) -> Snapshot | None:
    """Raises Undecodable, NotFound if it is gone, and what the bus raises."""
    bucket, saved = streams.snapshot_bucket(pool), await newest_saved(bus, pool)
    while saved is not None:
        try:
            return decode(await _object(bus, bucket, saved_object(saved.snapshot), saved.snapshot))
        except NotFound:
            if (newer := await newest_saved(bus, pool)) == saved:  # else the monitor has replaced it meanwhile
                raise
            saved = newer
    return None


async def _object(bus: Bus, bucket: str, name: str, digest: str) -> bytes:
    """Raises NotFound, DamagedObject, Unavailable, and Undecodable if it has another digest."""
    data = await with_retry(bus.get_object, bucket, name, max_bytes=MAX_BYTES)
    if hashlib.sha256(data).hexdigest() != digest:
        raise Undecodable(f"{name} is not the one that the ledger names")
    return data


async def _last(bus: Bus, subject: str) -> tuple[int, LedgerMessage | None]:
    """The newest message of a subject, and its sequence; None if there is none."""
    try:
        record = await with_retry(bus.last_record, subject)
    except UnknownStream:
        record = None
    return (0, None) if record is None else (record.sequence, read_message(record))
