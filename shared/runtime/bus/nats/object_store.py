"""Objects in JetStream, in the layout of NATS' own object stores (`nats object get` reads them).

Written here over plain requests, because a request fails when the connection breaks; nats-py's reader would
wait without end for the rest of an object.
"""

import base64
import hashlib
import json
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.errors import DamagedObject, NoResponder, NotFound, RequestTimeout, Unavailable, UnknownStream
from elasticflow.shared.messages.limits import NumBytes, Token
from elasticflow.shared.runtime.bus.nats import jetstream_api
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.replies import ConnectionBroke, status_of
from elasticflow.shared.runtime.process.clock import fresh_id

_CHUNK_BYTES = 512 * 1024  # below the default max_payload of 1 MiB
_TIMEOUT_S = 10.0  # for one chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Description:
    """What is read of the description of an object. Other clients write it, too."""

    nuid: Token
    chunks: NumBytes = 0
    size: NumBytes = 0
    digest: str = ""
    deleted: bool = False


_DESCRIPTION = TypeAdapter(_Description)


async def put(connection: Connection, bucket: str, name: str, data: bytes) -> None:
    """Chunks first, then the description that makes them visible, then away with what it replaces."""
    try:
        old = await _description(connection, bucket, name)
    except DamagedObject:
        old = None
    digest = _digest(data)
    if old is not None and (old.digest, old.size) == (digest, len(data)) and (old.chunks > 0 or not data):
        return
    nuid = fresh_id()
    chunks = [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)]
    for chunk in chunks:
        await jetstream_api.publish_acked(connection, _chunk_subject(bucket, nuid), chunk, {}, timeout_s=_TIMEOUT_S)
    description = {
        "name": name,
        "bucket": bucket,
        "nuid": nuid,
        "size": len(data),
        "chunks": len(chunks),
        "digest": digest,
        "options": {"max_chunk_size": _CHUNK_BYTES},
    }
    await jetstream_api.publish_acked(
        connection,
        _description_subject(bucket, name),
        json.dumps(description).encode(),
        {"Nats-Rollup": "sub"},
        timeout_s=_TIMEOUT_S,
    )
    if old is not None:
        await connection.api(f"STREAM.PURGE.OBJ_{bucket}", {"filter": _chunk_subject(bucket, old.nuid)})


async def get(connection: Connection, bucket: str, name: str, max_bytes: int) -> bytes:
    """The whole object, checked against its digest. Holds at most one chunk more than max_bytes."""
    description = await _description(connection, bucket, name)
    if description is None or description.deleted:
        raise NotFound(bucket, name)
    subject = _chunk_subject(bucket, description.nuid)
    data = bytearray()
    sequence = 0
    for _ in range(description.chunks):
        sequence, chunk = await _next_chunk(connection, bucket, subject, sequence + 1)
        data += chunk
        if max(len(data), description.size) > max_bytes:
            raise DamagedObject(bucket, name, f"more than {max_bytes:,} bytes")
    if _digest(data) != description.digest:
        raise DamagedObject(bucket, name, "its bytes have another digest than its description")
    return bytes(data)


async def _description(connection: Connection, bucket: str, name: str) -> _Description | None:
    try:
        message = await jetstream_api.last_message(connection, f"OBJ_{bucket}", _description_subject(bucket, name))
    except UnknownStream:
        raise NotFound(bucket, name) from None
    try:
        return _DESCRIPTION.validate_json(message.data) if message else None
    except ValidationError:
        raise DamagedObject(bucket, name, "its description is malformed") from None


async def _next_chunk(connection: Connection, bucket: str, subject: str, at_least: int) -> tuple[int, bytes]:
    """The first chunk at or behind a sequence, read directly: no base64, any replica will do."""
    request = json.dumps({"seq": at_least, "next_by_subj": subject}).encode()
    try:
        answer = await connection.request(f"$JS.API.DIRECT.GET.OBJ_{bucket}", request, timeout_s=_TIMEOUT_S)
    except (NoResponder, RequestTimeout, ConnectionBroke) as error:
        raise Unavailable(connection.url, str(error) or "connection broke") from None
    if status_of(answer) is not None or answer.headers is None:
        raise NotFound(bucket, subject)  # the server that was asked lacks it so far, or the object is being replaced
    return int(answer.headers["Nats-Sequence"]), answer.data


def _digest(data: bytes | bytearray) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()


def _chunk_subject(bucket: str, nuid: str) -> str:
    return f"$O.{bucket}.C.{nuid}"


def _description_subject(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
