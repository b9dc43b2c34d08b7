"""Deletes old objects of a bucket, and chunks that no description names: of uploads that were never finished.

A writer may put the same object meanwhile. It then writes its description again, by compare-and-set; so it either finds
the description deleted, and uploads all, or the deletion finds a newer description, and keeps the chunks.
"""

import base64
import binascii
from collections.abc import Callable

from elasticflow.shared.errors import DamagedObject
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.nats import jetstream_api
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.object_store import decoded


async def delete(connection: Connection, bucket: str, before_s: float, is_needed: Callable[[str], bool]) -> int:
    """See `Bus.delete_old_objects`."""
    stream = f"OBJ_{bucket}"
    chunks = await jetstream_api.subjects_in(connection, stream, f"$O.{bucket}.C.>")  # first: later ones are young
    named, num_deleted = set[str](), 0
    for subject in await jetstream_api.subjects_in(connection, stream, f"$O.{bucket}.M.>"):
        description = await jetstream_api.last_record(connection, stream, subject)
        if description is not None and description.stored_at_s < before_s and not is_needed(_name(subject)):
            await _purge(connection, stream, description)
            num_deleted += 1
            description = await jetstream_api.last_record(connection, stream, subject)
        if description is not None:
            named.add(_nuid(description, bucket))
    for subject in chunks:
        if subject.rpartition(".")[2] in named:
            continue
        chunk = await jetstream_api.last_record(connection, stream, subject)
        if chunk is not None and chunk.stored_at_s < before_s:
            await _purge(connection, stream, chunk)
    return num_deleted


async def _purge(connection: Connection, stream: str, newest: LedgerRecord) -> None:
    """Delete the messages of a subject up to this one."""
    request = {"filter": newest.subject, "seq": newest.sequence + 1}
    answer = await connection.api(f"STREAM.PURGE.{stream}", request)
    jetstream_api.check(answer, stream, connection.url)


def _name(subject: str) -> str:
    """Of the object that is described on this subject; "" if no client of ours wrote it."""
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
