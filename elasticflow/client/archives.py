"""A folder with the archived epochs of a ledger, each a file that is compressed and named by what it holds.

    <pool>-<first sequence>-<last sequence>-<digest of all messages up to the last>.ledger.gz

The ledger's newest `EpochBegan` names the digest at its end. So the files are chosen backwards from there, and
each must lead from the digest in the name before it to its own (docs/adr/0061).
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from elasticflow.errors import ArchiveChanged, ArchiveMissing
from elasticflow.shared.messages.events import EpochBegan
from elasticflow.shared.messages.export import BadExport, LedgerRecord, records_in
from elasticflow.shared.state.ledger_chain import digest_with

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

    Raises ArchiveMissing before the first record, and ArchiveChanged.
    """
    for digest, archive in _needed(folder, pool, began, after_sequence):
        for record in records_of(archive, digest):
            if record.sequence > after_sequence:
                yield record


def records_of(archive: Archive, digest: str) -> Iterator[LedgerRecord]:
    """digest: of all messages before it. Raises ArchiveChanged, at the latest after the last record."""
    last = archive.first - 1
    try:
        with gzip.open(archive.file) as opened:
            for record in records_in(cast(BinaryIO, opened), after_sequence=last):
                digest, last = digest_with(digest, record), record.sequence
                yield record
    except (BadExport, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ArchiveChanged(str(archive.file), str(error)) from None
    if (digest, last) != (archive.digest, archive.last):
        why = f"it does not lead to digest {archive.digest} at sequence {archive.last}"
        raise ArchiveChanged(str(archive.file), why)


def _needed(folder: Path, pool: str, began: EpochBegan, after_sequence: int) -> list[tuple[str, Archive]]:
    """The files with what follows a sequence, oldest first, each with the digest before it."""
    found = {(archive.last, archive.digest): archive for archive in _archives(folder, pool)}
    last, digest = began.based_on, began.chain
    needed: list[tuple[str, Archive]] = []
    while last > after_sequence:
        archive = found.get((last, digest))
        if archive is None:
            raise ArchiveMissing(pool, last, digest, str(folder))
        last, digest = archive.first - 1, _digest_at(archive.first - 1, found, pool, folder)
        needed.append((digest, archive))
    return needed[::-1]


def _digest_at(last: int, found: dict[tuple[int, str], Archive], pool: str, folder: Path) -> str:
    """Of the file before; a changed name is found when the next file is read."""
    if last == 0:
        return ""
    digests = [digest for at, digest in found if at == last]
    if len(digests) != 1:
        raise ArchiveMissing(pool, last, digests[0] if digests else "", str(folder))
    return digests[0]


def _archives(folder: Path, pool: str) -> Iterator[Archive]:
    for file in sorted(folder.glob("*.ledger.gz")):
        if (match := _NAME.fullmatch(file.name)) and match["pool"] == pool:
            yield Archive(file=file, first=int(match["first"]), last=int(match["last"]), digest=match["digest"])
