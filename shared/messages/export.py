"""A ledger as one file that any machine can read without NATS: `eflow events export`, `eflow replay`.

    EFLEDGER1\\n
    (length, crc32 | msgpack [sequence, subject, message_id, stored_at_s, data]) for each message
    (length, crc32 | msgpack {"count", "sha256"})        the end; the digest is of all bytes before it

An archive (`eflow events archive`) is the same, compressed, for the messages after those of the archive before it.

Length and crc32 are big-endian, four bytes each. The messages are the bytes that were on the bus; `codec` decodes
them. `read_export` returns no record before it has checked the whole file.
"""

import hashlib
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES

MAGIC = b"EFLEDGER1\n"
_PREFIX = struct.Struct(">II")
_MAX_RECORD_BYTES = MAX_MESSAGE_BYTES + 4096  # a message with its subject and id
_pack = cast(Callable[[object], bytes], msgpack.packb)  # pyright: ignore[reportUnknownMemberType]
_unpack = cast(Callable[[bytes], object], msgpack.unpackb)  # pyright: ignore[reportUnknownMemberType]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """One message of a ledger, not decoded."""

    sequence: int
    subject: str
    message_id: str
    stored_at_s: float
    data: bytes


class BadExport(ValueError):
    """The file cannot be replayed; the message says what is wrong, and where."""


class Sink(Protocol):
    """A file, or an asyncio stream."""

    def write(self, data: bytes, /) -> object: ...


class ExportWriter:
    """Writes records one by one. A file without `finish` counts as truncated."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._count = 0
        self._write(MAGIC)

    def add(self, record: LedgerRecord) -> None:
        """Append one record. Records must be in the order of the ledger."""
        fields = [record.sequence, record.subject, record.message_id, float(record.stored_at_s), record.data]
        self._write(_framed(_pack(fields)))
        self._count += 1

    def finish(self) -> None:
        """Write the end, by which a reader checks that no record is missing."""
        self._write(_framed(_pack({"count": self._count, "sha256": self._digest.hexdigest()})))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)


def read_export(file: BinaryIO) -> tuple[LedgerRecord, ...]:
    """All records of the file. Raises BadExport if it has another format, is truncated or damaged."""
    return tuple(records_in(file))


def records_in(file: BinaryIO, *, after_sequence: int = 0) -> Iterator[LedgerRecord]:
    """The records one by one, each checked, for example while the file is still written.

    after_sequence: the file begins behind it. Raises BadExport, also if the end is missing or belongs to other records.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise BadExport("not an export of an ElasticFlow ledger (it does not begin with EFLEDGER1)")
    digest = hashlib.sha256(MAGIC)
    last = after_sequence
    while True:
        framed = _next_frame(file, last)
        fields = _fields(framed[_PREFIX.size :], last)
        if isinstance(fields, dict):
            count = last - after_sequence
            if fields != {"count": count, "sha256": digest.hexdigest()}:
                raise BadExport(f"damaged: its end does not match its {count} messages")
            if file.read(1):
                raise BadExport(f"damaged: it has bytes after its end, which follows sequence {last}")
            return
        record = _record(fields, last)
        last = record.sequence
        digest.update(framed)
        yield record


def _framed(data: bytes) -> bytes:
    return _PREFIX.pack(len(data), zlib.crc32(data)) + data


def _next_frame(file: BinaryIO, last: int) -> bytes:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size:
        raise BadExport(f"cut off after sequence {last}")
    length, crc32 = _PREFIX.unpack(prefix)
    if length > _MAX_RECORD_BYTES:
        raise _damaged(last)
    data = file.read(length)
    if len(data) < length:
        raise BadExport(f"cut off after sequence {last}")
    if zlib.crc32(data) != crc32:
        raise _damaged(last)
    return prefix + data


def _fields(data: bytes, last: int) -> dict[str, object] | list[object]:
    try:
        fields = _unpack(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise _damaged(last) from error
    if not isinstance(fields, dict | list):
        raise _damaged(last)
    return cast("dict[str, object] | list[object]", fields)


def _record(fields: list[object], last: int) -> LedgerRecord:
    match fields:
        case [int(sequence), str(subject), str(message_id), float(stored_at_s), bytes(data)]:
            if sequence != last + 1:
                raise BadExport(f"damaged: sequence {sequence} where {last + 1} should be")
            return LedgerRecord(
                sequence=sequence,
                subject=subject,
                message_id=message_id,
                stored_at_s=stored_at_s,
                data=data,
            )
        case _:
            raise _damaged(last)


def _damaged(last: int) -> BadExport:
    return BadExport(f"damaged at sequence {last + 1}")
