"""Objects in JetStream, in the layout of NATS' own object stores.

An object of the name "owner/..." has the owner in its subjects too, so that an access list can name them.

Written here over plain requests, because a request fails when the connection breaks; nats-py's reader would
wait without end for the rest of an object.
"""

import base64
import binascii
import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from nats.aio.msg import Msg
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.errors import (
    DamagedObject,
    NoResponder,
    NotFound,
    NotPermitted,
    RequestTimeout,
    Unavailable,
    UnknownStream,
    WrongExpectedSequence,
)
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.limits import NumBytes, Token
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats import direct_reader, jetstream_api
from elasticflow.shared.runtime.bus.nats.connection import Connection, ConnectionBroke, status_of
from elasticflow.shared.runtime.process.clock import SystemClock, fresh_id

_CHUNK_BYTES = 512 * 1024  # below the default max_payload of 1 MiB
_TIMEOUT_S = 10.0  # for one chunk
_YOUNG_S = 3_600.0  # much less than objects are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is read of the description of an object. Other clients write it, too."""

    nuid: Token
    chunks: NumBytes = 0
    size: NumBytes = 0
    digest: str = ""
    deleted: bool = False

    def holds(self, data: bytes, digest: str) -> bool:
        return (self.digest, self.size) == (digest, len(data)) and (self.chunks > 0 or not data)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """record: the message with the description."""

    description: Description
    record: LedgerRecord


_DESCRIPTION = TypeAdapter(Description)


async def put(connection: Connection, bucket: str, name: str, data: bytes) -> None:
    """Chunks first, then the description that makes them visible, then away with what it replaces."""
    chunk_bytes = streams.ARTIFACT_PIECE_BYTES if streams.is_read_by_subject(bucket) else _CHUNK_BYTES
    assert len(data) <= chunk_bytes or not streams.is_read_by_subject(bucket), name
    try:
        stored = await _stored_in_replica(connection, bucket, name)
    except DamagedObject:
        stored = None
    except Unavailable:
        await _raise_if_missing(connection, bucket, name)
        raise
    digest = _digest(data)
    if stored is not None and stored.description.holds(data, digest) and await _keep(connection, bucket, stored):
        return
    nuid = fresh_id()
    chunks = [data[start : start + chunk_bytes] for start in range(0, len(data), chunk_bytes)]
    for chunk in chunks:
        subject = chunk_subject(bucket, name, nuid)
        await jetstream_api.publish_acked(connection, subject, chunk, {}, timeout_s=_TIMEOUT_S)
    description = {
        "name": name,
        "bucket": bucket,
        "nuid": nuid,
        "size": len(data),
        "chunks": len(chunks),
        "digest": digest,
        "options": {"max_chunk_size": chunk_bytes},
    }
    await jetstream_api.publish_acked(
        connection,
        _description_subject(bucket, name),
        json.dumps(description).encode(),
        {},
        timeout_s=_TIMEOUT_S,
    )
    if stored is not None:
        await _purge(connection, bucket, chunk_subject(bucket, name, stored.description.nuid), keep=0)
        await _purge(connection, bucket, _description_subject(bucket, name), keep=1)


async def _raise_if_missing(connection: Connection, bucket: str, name: str) -> None:
    """Raises NotFound if there is no such bucket. Clients may not ask; their buckets are always there."""
    if streams.is_read_by_subject(bucket) and await jetstream_api.stream_config(connection, f"OBJ_{bucket}") is None:
        raise NotFound(bucket, name)


async def _keep(connection: Connection, bucket: str, stored: _Stored) -> bool:
    """Whether the object stays for those who need it now: an old one is described anew, unless it is being deleted."""
    record = stored.record
    if abs(SystemClock().now_s() - record.stored_at_s) < _YOUNG_S:
        return True
    if streams.is_read_by_subject(bucket):
        return False  # a full bucket would drop its old chunk before the new description
    try:
        await jetstream_api.publish_acked(
            connection, record.subject, record.data, {}, timeout_s=_TIMEOUT_S, expected=record.sequence
        )
    except WrongExpectedSequence:
        return False
    return True


async def _purge(connection: Connection, bucket: str, subject: str, *, keep: int) -> None:
    """What a writer may not delete stays: readers take the newest."""
    with contextlib.suppress(NotPermitted):
        await connection.api(f"STREAM.PURGE.OBJ_{bucket}", {"filter": subject, "keep": keep})


async def get(connection: Connection, bucket: str, name: str, max_bytes: int) -> bytes:
    """The whole object, checked against its digest. Holds at most one chunk more than max_bytes."""
    by_subject = streams.is_read_by_subject(bucket)
    description = await (_described_in_replica if by_subject else _description)(connection, bucket, name)
    if description is None or description.deleted:
        raise NotFound(bucket, name)
    subject = chunk_subject(bucket, name, description.nuid)
    data = bytearray()
    sequence = 0
    for _ in range(min(description.chunks, 1) if by_subject else description.chunks):
        sequence, chunk = await _next_chunk(connection, bucket, subject, None if by_subject else sequence + 1)
        data += chunk
        if max(len(data), description.size) > max_bytes:
            raise DamagedObject(bucket, name, f"more than {max_bytes:,} bytes")
    if _digest(data) != description.digest:
        raise DamagedObject(bucket, name, "its bytes have another digest than its description")
    return bytes(data)


async def _description(connection: Connection, bucket: str, name: str) -> Description | None:
    try:
        message = await jetstream_api.last_message(connection, f"OBJ_{bucket}", _description_subject(bucket, name))
    except UnknownStream:
        raise NotFound(bucket, name) from None
    return decoded(message.data, bucket, name) if message else None


async def _described_in_replica(connection: Connection, bucket: str, name: str) -> Description | None:
    stored = await _stored_in_replica(connection, bucket, name)
    return None if stored is None else stored.description


async def _stored_in_replica(connection: Connection, bucket: str, name: str) -> _Stored | None:
    """An old one costs a writer a second upload only. The request names the subject, so it can be permitted."""
    answer = await _get_directly(connection, bucket, f".{_description_subject(bucket, name)}", b"")
    if status_of(answer) is not None:
        return None
    return _Stored(description=decoded(answer.data, bucket, name), record=direct_reader.record_in(answer))


def decoded(data: bytes, bucket: str, name: str) -> Description:
    try:
        return _DESCRIPTION.validate_json(data)
    except ValidationError:
        raise DamagedObject(bucket, name, "its description is malformed") from None


async def _next_chunk(connection: Connection, bucket: str, subject: str, at_least: int | None) -> tuple[int, bytes]:
    """The first chunk at or behind a sequence, read directly: no base64, any replica will do.

    at_least: None for the only chunk, by a request that names its subject.
    """
    request = b"" if at_least is None else json.dumps({"seq": at_least, "next_by_subj": subject}).encode()
    answer = await _get_directly(connection, bucket, f".{subject}" if at_least is None else "", request)
    if status_of(answer) is not None or answer.headers is None:
        raise NotFound(bucket, subject)  # the server that was asked lacks it so far, or the object is being replaced
    return int(answer.headers["Nats-Sequence"]), answer.data


async def _get_directly(connection: Connection, bucket: str, subject: str, request: bytes) -> Msg:
    try:
        return await connection.request(f"$JS.API.DIRECT.GET.OBJ_{bucket}{subject}", request, timeout_s=_TIMEOUT_S)
    except (NoResponder, RequestTimeout, ConnectionBroke) as error:
        raise Unavailable(connection.url, str(error) or "connection broke") from None


def _digest(data: bytes | bytearray) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()


def chunk_subject(bucket: str, name: str, nuid: str) -> str:
    return f"$O.{bucket}.C.{_owner(name)}{nuid}"


def _description_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{_owner(name)}{base64.urlsafe_b64encode(name.encode()).decode()}"


def _owner(name: str) -> str:
    owner, separator, _ = name.partition("/")
    return f"{owner}." if separator else ""


# --- old objects ---------------------------------------------------------------------------------------
# Deletes old objects of a bucket, and chunks that no description names: of uploads that were never finished.
#
# A writer may put the same object meanwhile. It then writes its description again, by compare-and-set; so it either
# finds the description deleted, and uploads all, or the deletion finds a newer description, and keeps the chunks.


async def delete(connection: Connection, bucket: str, before_s: float, is_needed: Callable[[str], bool]) -> int:
    """See `Bus.delete_old_objects`."""
    stream = f"OBJ_{bucket}"
    chunks = await jetstream_api.subjects_in(connection, stream, f"$O.{bucket}.C.>")  # first: later ones are young
    named, num_deleted = set[str](), 0
    for subject in await jetstream_api.subjects_in(connection, stream, f"$O.{bucket}.M.>"):
        description = await jetstream_api.last_record(connection, stream, subject)
        if description is not None and description.stored_at_s < before_s and not is_needed(_name(subject)):
            await _delete_up_to(connection, stream, description)
            num_deleted += 1
            description = await jetstream_api.last_record(connection, stream, subject)
        if description is not None:
            named.add(_nuid(description, bucket))
    for subject in chunks:
        if subject.rpartition(".")[2] in named:
            continue
        chunk = await jetstream_api.last_record(connection, stream, subject)
        if chunk is not None and chunk.stored_at_s < before_s:
            await _delete_up_to(connection, stream, chunk)
    return num_deleted


async def _delete_up_to(connection: Connection, stream: str, newest: LedgerRecord) -> None:
    """Delete the messages of a subject up to this one."""
    request = {"filter": newest.subject, "seq": newest.sequence + 1}
    answer = await connection.api(f"STREAM.PURGE.{stream}", request)
    jetstream_api.check(answer, stream, connection.url)


def _name(subject: str) -> str:
    """The name of the object that is described on this subject; "" if no client of ours wrote it."""
    try:
        return base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
    except (binascii.Error, ValueError):
        return ""


def _nuid(description: LedgerRecord, bucket: str) -> str:
    """The token of its chunks; "" if the description is damaged, and the object cannot be read."""
    try:
        return decoded(description.data, bucket, _name(description.subject)).nuid
    except DamagedObject:
        return ""
