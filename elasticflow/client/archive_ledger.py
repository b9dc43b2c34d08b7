"""Begin a new epoch of a ledger: what is before it becomes a file, and a snapshot from which all readers start.

The order keeps every crash harmless: the file and the snapshot are read back before the ledger names them. Only then
messages may be deleted (docs/adr/0061).
"""

import asyncio
import gzip
import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from elasticflow.client.ledger import Archive, LedgerView, archive_name, archived_records, records_of
from elasticflow.shared.errors import LedgerUnusable
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import EpochBegan
from elasticflow.shared.messages.export import ExportWriter, LedgerRecord
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import with_retry
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.files import rename_durably, write_durably
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.decision_problems import chain_problem
from elasticflow.shared.runtime.service.ledger_encoding import event_id
from elasticflow.shared.runtime.service.snapshot_store import Epoch, Snapshot
from elasticflow.shared.state.fold.ledger_fold import FOLD, Unreadable, evolve
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.pool import PoolState

_CONNECT_WAIT_S = 5.0

Progress = Callable[[int, int], None]  # the number of messages that are done, and of all


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """up_to: the last archived message. file: with those since the epoch before; "" if there were none."""

    up_to: int
    file: str = ""
    num_messages: int = 0
    num_bytes: int = 0


async def archive(url: str, pool: str, folder: Path, clock: Clock, *, delete: bool, on_message: Progress) -> Archived:
    """Archive the ledger up to its newest decision. delete: also delete what the archives in this folder hold.

    Raises LedgerUnusable, and WrongExpectedSequence if another operator did the same meanwhile.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    bus = await connect_nats(
        url, name="eflow-archive", wait_s=_CONNECT_WAIT_S, access=NatsAccess.from_environment(os.environ)
    )
    try:
        epoch = await snapshot_store.newest_epoch(bus, pool)
        done = await _begin_epoch(bus, pool, folder, epoch, clock, on_message)
        if delete:
            await _delete_archived(bus, pool, folder)
        return done
    finally:
        await bus.close()


async def _begin_epoch(
    bus: NatsBus, pool: str, folder: Path, previous: Epoch | None, clock: Clock, on_message: Progress
) -> Archived:
    """Up to before the newest decision: it stays, because compare-and-set expects the last message of the plan."""
    begun = 0 if previous is None else previous.began.based_on
    last = await bus.last_subject_sequence(subjects.plan(pool)) - 1
    if last <= (0 if previous is None else previous.sequence):
        return Archived(up_to=begun)
    start = Snapshot(state=PoolState(), chain="")
    if previous is not None:
        start = await snapshot_store.of_epoch(bus, pool, previous.began)
    written, snapshot = await _written(bus, pool, folder, start, last, on_message)
    await asyncio.to_thread(_read_whole, records_of(written, start.chain))
    digest = await _stored(bus, pool, folder, snapshot)
    now_s = clock.now_s()
    began = EpochBegan(based_on=last, chain=snapshot.chain, snapshot=digest, fold=FOLD, at_s=now_s)
    await with_retry(
        bus.append,
        subjects.epoch(pool),
        codec.encode(began, id=event_id(began), recorded_at_s=now_s),
        message_id=event_id(began),
        expected_last_subject_sequence=0 if previous is None else previous.sequence,
    )
    num_bytes = written.file.stat().st_size
    return Archived(up_to=last, file=str(written.file), num_messages=last - begun, num_bytes=num_bytes)


async def _written(
    bus: NatsBus, pool: str, folder: Path, start: Snapshot, last: int, on_message: Progress
) -> tuple[Archive, Snapshot]:
    """The file, whole and on the disk, and the state after it. Raises LedgerUnusable where the services disagree."""
    state, chain, begun = start.state, start.ledger_chain(), start.state.sequence
    unreadable = 0
    unfinished = folder / f".{pool}-{begun + 1}-{last}.part"
    try:
        with unfinished.open("wb") as out:
            with gzip.GzipFile("", "wb", fileobj=out, mtime=0) as compressed:
                writer = ExportWriter(compressed)
                async with aclosing(LedgerView(bus, pool).entries(after_sequence=begun, up_to=last)) as entries:
                    async for stored, message in entries:
                        writer.add(stored)
                        chain.add(stored, message)
                        state = evolve(state, message, stored.sequence)
                        unreadable = stored.sequence if isinstance(message, Unreadable) else unreadable
                        on_message(stored.sequence - begun, last - begun)
                writer.finish()
            out.flush()
            os.fsync(out.fileno())
        if problem := _problem(chain, state, unreadable):
            raise _not_archived(pool, problem)
        file = folder / archive_name(pool, begun + 1, last, chain.digest)
        rename_durably(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)
    written = Archive(file=file, first=begun + 1, last=last, digest=chain.digest)
    return written, Snapshot(state=state, chain=chain.digest)


def _problem(chain: LedgerChain, state: PoolState, unreadable: int) -> str | None:
    """Later readers continue from this state. unreadable: the last message that is not in it."""
    if unreadable > state.config.skip_plan_up_to:
        return (
            f"it cannot read message {unreadable}: use the eflow of a newer version; if the message is damaged, "
            f"run `eflow configure --skip-plan-up-to {unreadable}`"
        )
    return chain_problem(chain, state)


async def _stored(bus: NatsBus, pool: str, folder: Path, snapshot: Snapshot) -> str:
    """Store the snapshot, also beside the archive; its digest."""
    data = await asyncio.to_thread(_encoded, snapshot)
    digest = hashlib.sha256(data).hexdigest()
    file = folder / f"{pool}-{snapshot.state.sequence}-{digest}.snapshot"
    unfinished = file.with_name(f".{file.name}.part")
    write_durably(unfinished, data)
    rename_durably(unfinished, file)
    bucket, name = streams.snapshot_bucket(pool), snapshot_store.epoch_object(digest)
    await with_retry(bus.put_object, bucket, name, data)
    if await with_retry(bus.get_object, bucket, name, max_bytes=snapshot_store.MAX_BYTES) != data:
        raise _not_archived(pool, f"object {name} in {bucket} is not what was stored")
    return digest


def _not_archived(pool: str, reason: str) -> LedgerUnusable:
    return LedgerUnusable("not_archived", f"the ledger of pool {pool!r} was not archived, and is as before: {reason}")


def _encoded(snapshot: Snapshot) -> bytes:
    data = snapshot_store.encode(snapshot)
    assert snapshot_store.decode(data, of_any_shape=True) == snapshot, "a snapshot must restore what was folded"
    return data


def _read_whole(records: Iterable[LedgerRecord]) -> None:
    """So that each file is checked: for minutes, and in a thread, so that the connection stays alive."""
    for _ in records:
        pass


async def _delete_archived(bus: NatsBus, pool: str, folder: Path) -> None:
    """Delete up to the newest epoch, after the archives of what is deleted were read and its snapshot was loaded."""
    epoch = await snapshot_store.newest_epoch(bus, pool)
    if epoch is None:
        return
    deleted_before = (await with_retry(bus.ledger_end, pool)).first - 1
    await asyncio.to_thread(_read_whole, archived_records(folder, pool, epoch.began, deleted_before))
    await snapshot_store.of_epoch(bus, pool, epoch.began)
    await bus.delete_ledger(pool, up_to=epoch.began.based_on)
