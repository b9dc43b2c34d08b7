"""A pool's ledger into a file, and out of it again; the format is that of `shared/messages/export.py`."""

import asyncio
import contextlib
from pathlib import Path
from typing import BinaryIO

from elasticflow.errors import NotAnExport
from elasticflow.ledger_view import LedgerEntry, LedgerView, readable
from shared.messages.export import BadExport, ExportWriter, LedgerRecord, read_export
from shared.runtime.bus import Stored


async def write_ledger(client: LedgerView, file: Path) -> int:
    """All messages up to now; how many. The file appears whole, or not at all."""
    unfinished = file.with_name(f".{file.name}.part")
    count = 0
    try:
        with unfinished.open("wb") as out:
            writer = ExportWriter(out)
            async with contextlib.aclosing(client.entries(up_to=await client.last_sequence())) as entries:
                async for stored, _ in entries:
                    writer.add(_record(stored))
                    count += 1
            writer.finish()
        unfinished.replace(file)
    except OSError as error:  # under the name that its user gave
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count


async def stream_ledger(client: LedgerView, pipe: BinaryIO) -> None:
    """All messages, and whatever comes after them, for ever: each is there as soon as the ledger has it.

    A reader who takes its time holds up nothing but this. Raises ConnectionError once there is none any more.
    """
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    stream = asyncio.StreamWriter(transport, protocol, None, loop)
    writer = ExportWriter(stream)
    try:
        async with contextlib.aclosing(client.entries()) as entries:
            async for stored, _ in entries:
                writer.add(_record(stored))
                await stream.drain()
    finally:
        if not transport.is_closing():
            transport.abort()


def read_ledger(file: Path) -> tuple[LedgerEntry, ...]:
    """Raises NotAnExport if the file is foreign, cut off or damaged, with the place."""
    with file.open("rb") as opened:
        try:
            records = read_export(opened)
        except BadExport as error:
            raise NotAnExport(str(file), str(error)) from None
    return tuple((stored, readable(stored)) for stored in map(_stored, records))


def _record(stored: Stored) -> LedgerRecord:
    return LedgerRecord(
        sequence=stored.sequence,
        subject=stored.subject,
        message_id=stored.message_id,
        stored_at_s=stored.stored_at_s,
        data=stored.data,
    )


def _stored(record: LedgerRecord) -> Stored:
    return Stored(
        subject=record.subject,
        sequence=record.sequence,
        data=record.data,
        message_id=record.message_id,
        stored_at_s=record.stored_at_s,
    )
