"""Streaming of a growing ledger: a slow reader delays only the stream, and may close it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import BinaryIO, cast

import pytest

from elasticflow.client.ledger import LedgerEntry, LedgerView, stream_ledger
from elasticflow.shared.messages.export import LedgerRecord, records_in

WAIT_S = 10.0


class LongLedger:
    """A ledger without end."""

    async def entries(self) -> AsyncGenerator[LedgerEntry, None]:
        sequence = 0
        while True:
            sequence += 1
            yield (
                LedgerRecord(
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
    """The task that streams a long ledger, and the reading end of its pipe."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader, os.fdopen(write_end, "wb") as pipe:
        task = asyncio.create_task(stream_ledger(cast(LedgerView, LongLedger()), pipe))
        try:
            yield task, reader
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=WAIT_S)


async def test_a_slow_reader_delays_only_the_stream() -> None:
    async with streaming() as (task, reader):
        first = await asyncio.to_thread(lambda: next(iter(records_in(reader))))
        assert first.sequence == 1
        task.cancel()  # the pipe is full; the task can still be cancelled
        await asyncio.wait([task], timeout=WAIT_S)
        assert task.cancelled()


async def test_a_closed_pipe_ends_the_stream() -> None:
    async with streaming() as (task, reader):
        reader.close()
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(ConnectionError):
                await task
