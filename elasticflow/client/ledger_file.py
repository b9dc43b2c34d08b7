"""Export of a pool's ledger into a file, and import; the format is in `shared/messages/export.py`."""

import asyncio
import contextlib
from pathlib import Path
from typing import BinaryIO

from elasticflow.client.ledger_view import LedgerEntry, LedgerView, readable
from elasticflow.errors import NotAnExport
from elasticflow.shared.messages.export import BadExport, ExportWriter, read_export


async def write_ledger(client: LedgerView, file: Path) -> int:
    """Write all messages up to now; return their number. The file appears whole, or not at all."""
    unfinished = file.with_name(f".{file.name}.part")
    count = 0
    try:
        with unfinished.open("wb") as out:
            writer = ExportWriter(out)
            async with contextlib.aclosing(client.entries(up_to=await client.last_sequence())) as entries:
                async for stored, _ in entries:
                    writer.add(stored)
                    count += 1
            writer.finish()
        unfinished.replace(file)
    except OSError as error:  # with the file name that the user gave
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count


async def stream_ledger(client: LedgerView, pipe: BinaryIO) -> None:
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
    """Raises NotAnExport, with the place, if the file has another format, is truncated or damaged."""
    with file.open("rb") as opened:
        try:
            records = read_export(opened)
        except BadExport as error:
            raise NotAnExport(str(file), str(error)) from None
    return tuple((record, readable(record)) for record in records)
