"""The changes of a source, as one browser receives them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from elasticflow.web import read_routes
from elasticflow.web.read_routes import PoolStream, until
from elasticflow.web.sources import RecordedSource
from testbed.histories import NOW_S
from testbed.page_ledger import page_history, recorded

LAST = 67  # messages of the ledger


def clock(now_s: float) -> bytes:
    return f"event: clock\ndata: {now_s}\n\n".encode()


@asynccontextmanager
async def told_so_far(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RecordedSource, AsyncIterator[bytes]]]:
    """A source, and the events of a browser that has had its first update and its first status."""
    monkeypatch.setattr(read_routes, "_KEEP_ALIVE_S", 0.01)
    source = RecordedSource("run", recorded(page_history()))
    await source.fold_all()
    events = PoolStream(source).events(0)
    assert await anext(events) == clock(NOW_S + 58.0)
    assert f"id: {LAST}\n".encode() in await anext(events)
    assert (await anext(events)).startswith(b"event: status\n")
    yield source, events
    await events.aclose()


async def test_a_page_that_is_opened_later_gets_the_time_of_then() -> None:
    """In an idle pool the newest update is old, and its bytes are kept."""
    source = RecordedSource("run", recorded(page_history()))
    await source.fold_all()
    stream = PoolStream(source)
    for now_s in (NOW_S + 60.0, NOW_S + 180.0):
        source.now_s = lambda now_s=now_s: now_s  # type: ignore[method-assign]
        events = stream.events(0)
        assert await anext(events) == clock(now_s)
        assert f"id: {LAST}\n".encode() in await anext(events)
        await events.aclose()


async def test_without_a_change_the_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with told_so_far(monkeypatch) as (_, events):
        assert await anext(events) == clock(NOW_S + 58.0)


async def test_a_connection_that_is_lost_before_the_stream_waits_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing wakes the stream then: it would be told with the next message only."""
    async with told_so_far(monkeypatch) as (source, events):
        source.stale_since_s = 1.0
        assert b'"stale_since_s":1.0' in await anext(events)


async def test_a_stream_ends_with_the_server_also_while_it_waits() -> None:
    is_closed = asyncio.Event()

    async def waits() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            is_closed.set()

    ending = asyncio.Event()
    stream = until(ending, waits())
    assert await anext(stream) == b"first"
    asyncio.get_running_loop().call_soon(ending.set)
    assert [content async for content in stream] == []
    assert is_closed.is_set()


async def test_a_stream_that_ends_by_itself_ends() -> None:
    async def ends() -> AsyncGenerator[bytes, None]:
        yield b"all"

    assert [content async for content in until(asyncio.Event(), ends())] == [b"all"]
