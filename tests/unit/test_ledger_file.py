"""A ledger that is handed on while it grows: its reader sets the pace, and may leave."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import BinaryIO, cast

import pytest

from elasticflow.ledger_file import stream_ledger
from elasticflow.ledger_view import LedgerEntry, LedgerView
from shared.messages.export import records_in
from shared.runtime.bus import Stored

WAIT_S = 10.0


class LongLedger:
    """As many messages as anybody wants to read."""

    async def entries(self) -> AsyncGenerator[LedgerEntry, None]:
        sequence = 0
        while True:
            sequence += 1
            yield (
                Stored(
                    subject="ef.ledger.p.plan",
                    sequence=sequence,
                    data=b"x" * 100,
                    message_id="",
                    stored_at_s=0.0,
                ),
                None,
            )


@contextlib.asynccontextmanager
async def streaming() -> AsyncGenerator[tuple[asyncio.Task[None], BinaryIO], None]:
    """The task that hands a long ledger on, and the end of the pipe from which it is read."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "wb") as pipe:
        task = asyncio.create_task(stream_ledger(cast(LedgerView, LongLedger()), pipe))
        try:
            yield task, reader
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=WAIT_S)


async def test_a_reader_that_pauses_holds_up_nothing_else() -> None:
    async with streaming() as (task, reader):
        first = await asyncio.to_thread(lambda: next(iter(records_in(reader))))
        assert first.sequence == 1
        task.cancel()  # it waits for room in the pipe: whoever interrupts it is heard
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.cancelled()


async def test_a_reader_that_leaves_ends_it() -> None:
    async with streaming() as (task, reader):
        reader.close()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(ConnectionError):
                await task
