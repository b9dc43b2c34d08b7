"""A pool's ledger, read over one connection, from archives or from an exported file, and the state that it folds to.

No service takes part. The file format is in `shared/messages/export.py`.
"""

import asyncio
import contextlib
import gzip
import os
import re
import shlex
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from elasticflow.errors import InputUnusable, UnknownJob
from elasticflow.history.job_history import HistoryEntry, job_history
from elasticflow.shared.errors import LedgerBroken, LedgerUnusable
from elasticflow.shared.messages.events import EpochBegan
from elasticflow.shared.messages.export import BadExport, ExportWriter, LedgerRecord, read_export, records_in
from elasticflow.shared.runtime.bus.contract import with_retry
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage
from elasticflow.shared.state.ledger_chain import LedgerChain, digest_with
from elasticflow.shared.state.pool import PoolState

# --- archives ------------------------------------------------------------------------------------------
# A folder with the archived epochs of a ledger, each a file that is compressed and named by what it holds.
#
#     <pool>-<first sequence>-<last sequence>-<digest of all messages up to the last>.ledger.gz
#
# The ledger's newest `EpochBegan` names the digest at its end. So the files are chosen backwards from there, and each
# must lead from the digest in the name before it to its own (docs/adr/0061).

_NAME = re.compile(r"(?P<pool>[A-Za-z0-9_-]+)-(?P<first>\d+)-(?P<last>\d+)-(?P<digest>[0-9a-f]{32})\.ledger\.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """One file. digest: of all messages of the ledger up to the last one."""

    file: Path
    first: int
    last: int
    digest: str


def archive_name(pool: str, first: int, last: int, digest: str) -> str:
    return f"{pool}-{first}-{last}-{digest}.ledger.gz"


def archived_records(folder: Path, pool: str, began: EpochBegan, after_sequence: int = 0) -> Iterator[LedgerRecord]:
    """What is archived after a sequence, up to the beginning of the epoch. At the end of each file it is checked.

    Raises LedgerUnusable: for a missing file before the first record, for a changed one after its last at the latest.
    """
    for digest, archive in _needed(folder, pool, began, after_sequence):
        for record in records_of(archive, digest):
            if record.sequence > after_sequence:
                yield record


def records_of(archive: Archive, digest: str) -> Iterator[LedgerRecord]:
    """digest: of all messages before it. Raises LedgerUnusable, at the latest after the last record."""
    last = archive.first - 1
    try:
        with gzip.open(archive.file) as opened:
            for record in records_in(cast(BinaryIO, opened), after_sequence=last):
                digest, last = digest_with(digest, record), record.sequence
                yield record
    except (BadExport, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise _changed(archive.file, str(error)) from None
    if (digest, last) != (archive.digest, archive.last):
        why = f"it does not lead to digest {archive.digest} at sequence {archive.last}"
        raise _changed(archive.file, why)


def _changed(file: Path, reason: str) -> LedgerUnusable:
    return LedgerUnusable(
        "archive_changed",
        f"{file} does not hold the messages on which the pool decided ({reason}): it, or the name of the archive "
        "before it, was changed; take a copy",
    )


def _needed(folder: Path, pool: str, began: EpochBegan, after_sequence: int) -> list[tuple[str, Archive]]:
    """The files with what follows a sequence, oldest first, each with the digest before it."""
    found = {(archive.last, archive.digest): archive for archive in _archives(folder, pool)}
    last, digest = began.based_on, began.chain
    needed: list[tuple[str, Archive]] = []
    while last > after_sequence:
        archive = found.get((last, digest))
        if archive is None:
            raise _missing(pool, last, digest, folder)
        last, digest = archive.first - 1, _digest_at(archive.first - 1, found, pool, folder)
        needed.append((digest, archive))
    return needed[::-1]


def _digest_at(last: int, found: dict[tuple[int, str], Archive], pool: str, folder: Path) -> str:
    """The digest of the file before. A changed name is found when the next file is read."""
    if last == 0:
        return ""
    digests = [digest for at, digest in found if at == last]
    if len(digests) != 1:
        raise _missing(pool, last, digests[0] if digests else "", folder)
    return digests[0]


def _missing(pool: str, last: int, digest: str, folder: Path) -> LedgerUnusable:
    named = f"{pool}-...-{last}-{digest}.ledger.gz"
    return LedgerUnusable("archive_missing", f"{folder} has no {named}: it is missing, or its name was changed")


def _archives(folder: Path, pool: str) -> Iterator[Archive]:
    for file in sorted(folder.glob("*.ledger.gz")):
        if (match := _NAME.fullmatch(file.name)) and match["pool"] == pool:
            yield Archive(file=file, first=int(match["first"]), last=int(match["last"]), digest=match["digest"])


# --- ledger --------------------------------------------------------------------------------------------

ARCHIVES = "EF_ARCHIVES"  # names the folder to which `eflow events archive` wrote
_AT_ONCE = 512  # archived or written messages without a pause for other tasks

LedgerEntry = tuple[LedgerRecord, LedgerMessage]


def archives_needed(pool: str, based_on: int) -> LedgerUnusable:
    return LedgerUnusable(
        "archives_needed",
        f"messages 1 to {based_on} of pool {pool!r} are in archives: set {ARCHIVES} to their folder, or start after "
        "them",
    )


class LedgerView:
    """One pool's ledger, read over one connection."""

    def __init__(self, bus: NatsBus, pool: str) -> None:
        self._bus, self._pool = bus, pool

    async def entries(self, *, after_sequence: int = 0, up_to: int | None = None) -> AsyncGenerator[LedgerEntry, None]:
        """The ledger, message by message, up to a sequence or without end; first what is in archives only.

        Raises LedgerUnusable if an archive is needed and missing or changed.
        """
        first = (await with_retry(self._bus.ledger_end, self._pool)).first
        if after_sequence + 1 < first and after_sequence != up_to:
            began = await self._epoch_at(after_sequence, first)
            for record in archived_records(self._archives(began), self._pool, began, after_sequence):
                if up_to is not None and record.sequence > up_to:
                    return
                yield record, read_message(record)
                if record.sequence % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            after_sequence = began.based_on
        batches = (
            self._bus.follow(self._pool, after_sequence=after_sequence)
            if up_to is None
            else self._bus.read(self._pool, after_sequence=after_sequence, up_to=up_to)
        )
        async with contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for stored in batch:
                    yield stored, read_message(stored)

    async def last_sequence(self) -> int:
        return await with_retry(self._bus.last_sequence, self._pool)

    async def beginning(self) -> PoolState:
        """The state before the first message that can be read here; without archives, that at the epoch's beginning."""
        return PoolState() if ARCHIVES in os.environ else await snapshot_store.beginning(self._bus, self._pool)

    async def loss(self) -> LedgerBroken | None:
        """Messages that are neither in the ledger nor in an archive that it names."""
        first = (await with_retry(self._bus.ledger_end, self._pool)).first
        return self._loss_before(first, await snapshot_store.newest_epoch(self._bus, self._pool))

    async def unreadable(self) -> LedgerBroken | None:
        """The first messages that NATS counts and cannot read: a snapshot hides them from most readers."""
        end = await with_retry(self._bus.ledger_end, self._pool)
        batches = self._bus.read(self._pool, after_sequence=end.first - 1, up_to=end.sequence)
        try:
            async for _ in batches:
                pass
        except LedgerBroken as loss:
            return loss
        return None

    def _loss_before(self, first: int, epoch: snapshot_store.Epoch | None) -> LedgerBroken | None:
        expected = 1 if epoch is None else epoch.began.based_on + 1
        return LedgerBroken(self._pool, expected, first) if first > expected else None

    async def _epoch_at(self, after_sequence: int, first: int) -> EpochBegan:
        """The newest epoch: what is missing before the first message must be in its archives. Raises LedgerBroken."""
        epoch = await snapshot_store.newest_epoch(self._bus, self._pool)
        if epoch is None:
            raise LedgerBroken(self._pool, after_sequence + 1, first)
        if (loss := self._loss_before(first, epoch)) is not None:
            raise loss
        return epoch.began

    def _archives(self, began: EpochBegan) -> Path:
        if ARCHIVES not in os.environ:
            raise archives_needed(self._pool, began.based_on)
        return Path(os.environ[ARCHIVES])

    async def state(self) -> PoolState:
        """The pool now: the newest snapshot and the later messages."""
        state, _ = await self.state_and_chain()
        return state

    async def state_and_chain(self) -> tuple[PoolState, LedgerChain]:
        """The pool now, and the chain of its ledger: verified from the newest snapshot on."""
        snapshot = await snapshot_store.load(self._bus, self._pool, get_log("client"))
        state, chain = (PoolState(), LedgerChain()) if snapshot is None else (snapshot.state, snapshot.ledger_chain())
        async for stored, message in self.entries(after_sequence=state.sequence, up_to=await self.last_sequence()):
            chain.add(stored, message)
            state = ledger_fold.evolve(state, message, stored.sequence)
        return state, chain

    async def states(self) -> AsyncGenerator[PoolState, None]:
        """The pool now and after every change, without end; a burst of changes counts as one."""
        state = await self.state()
        yield state
        batches = self._bus.follow(self._pool, after_sequence=state.sequence)
        async with contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for stored in batch:
                    state = ledger_fold.evolve(state, read_message(stored), stored.sequence)
                yield state


class LedgerReader(Protocol):
    """What can be exported."""

    def entries(self, *, after_sequence: int = 0, up_to: int | None = None) -> AsyncGenerator[LedgerEntry, None]: ...
    async def last_sequence(self) -> int: ...


async def write_ledger(
    client: LedgerReader, file: Path, *, on_message: Callable[[int, int], None] | None = None
) -> int:
    """Write all messages up to now; return their number. The file appears whole, or not at all.

    on_message: called with the number of messages that are written, and of all.
    """
    unfinished = file.with_name(f".{file.name}.part")
    try:
        with unfinished.open("wb") as out:
            last = await client.last_sequence()

            def written(count: int) -> None:
                if on_message is not None:
                    on_message(count, last)

            count = await write_entries(client.entries(up_to=last), out, written)
        unfinished.replace(file)
    except OSError as error:  # with the file name that the user gave
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count


async def write_entries(
    entries: AsyncGenerator[LedgerEntry, None], out: BinaryIO, on_message: Callable[[int], None] = lambda written: None
) -> int:
    """Write an export of these messages, with pauses for other tasks; return their number."""
    writer, count = ExportWriter(out), 0
    async with contextlib.aclosing(entries):
        async for stored, _ in entries:
            writer.add(stored)
            count += 1
            on_message(count)
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
    writer.finish()
    return count


async def stream_ledger(client: LedgerReader, pipe: BinaryIO) -> None:
    """Write all messages, then each new one as soon as the ledger has it, without end.

    A slow reader delays only this. Raises ConnectionError once the reader is gone.
    """
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    stream = asyncio.StreamWriter(transport, protocol, None, loop)
    writer = ExportWriter(stream)
    try:
        async with contextlib.aclosing(client.entries()) as entries:
            async for stored, _ in entries:
                writer.add(stored)
                await stream.drain()
    finally:
        if not transport.is_closing():
            transport.abort()


def read_ledger(file: Path) -> tuple[LedgerEntry, ...]:
    """Raises InputUnusable, with the place, if the file has another format, is truncated or damaged."""
    with file.open("rb") as opened:
        try:
            records = read_export(opened)
        except BadExport as error:
            problem = f"{file} is not an exported ledger: {error}; write one with `eflow events export FILE`"
            raise InputUnusable("not_an_export", problem) from None
    return tuple((record, read_message(record)) for record in records)


# --- exported ledger -----------------------------------------------------------------------------------
# An exported ledger, read as a pool is: what a command shows of one, it shows of the other.


class ExportedLedger:
    """The ledger in a file that `eflow events export` wrote. Time stands at its last message. Raises InputUnusable."""

    def __init__(self, file: Path) -> None:
        self._file, self._entries = file, read_ledger(file)

    @property
    def ledger(self) -> "ExportedLedger":
        return self

    def now_s(self) -> float:
        return self._entries[-1][0].stored_at_s if self._entries else 0.0

    async def last_sequence(self) -> int:
        return self._entries[-1][0].sequence if self._entries else 0

    async def entries(self, *, after_sequence: int = 0, up_to: int | None = None) -> AsyncGenerator[LedgerEntry, None]:
        for stored, message in self._entries:
            if after_sequence < stored.sequence and (up_to is None or stored.sequence <= up_to):
                yield stored, message

    async def state(self) -> PoolState:
        state = PoolState()
        for stored, message in self._entries:
            state = ledger_fold.evolve(state, message, stored.sequence)
        return state

    async def known_history(self, name: str) -> tuple[HistoryEntry, ...]:
        """Raises UnknownJob, with close names."""
        history = job_history(
            ((stored.sequence, stored.stored_at_s, message) for stored, message in self._entries), name
        )
        if not history:
            lister = f"eflow jobs --all --file {shlex.quote(str(self._file))}"
            raise UnknownJob(name, str(self._file), (await self.state()).names, lister)
        return history
