"""The server of the page: its memory, and its share of a core, idle and with viewers."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from benchmarks.page.served_pool import ServedPool, used_s
from benchmarks.report import Measured, Row
from elasticflow.web.server import STATIC

_EVENT_SPACING_S = 0.25


async def measure_server(pool: ServedPool, *, seconds: float, num_viewers: int) -> Measured:
    """Measure without the browser, which shows a page that does not follow the pool."""
    await pool.page.goto("about:blank")
    rss_mb = pool.server.memory_info().rss / 1e6
    idle = await _share_of_a_core(pool, seconds)
    async with _viewers(pool, num_viewers):
        adding = asyncio.create_task(_add_nodes(pool))
        try:
            with_viewers = await _share_of_a_core(pool, seconds)
        finally:
            adding.cancel()
            await asyncio.wait([adding])
    return {
        "num_messages": pool.num_messages,
        "rss_mb": rss_mb,
        "idle_share": idle,
        "num_viewers": num_viewers,
        "events_per_s": 1 / _EVENT_SPACING_S,
        "share_with_viewers": with_viewers,
        "rss_with_viewers_mb": pool.server.memory_info().rss / 1e6,
        "static_kb": sum(_compressed_bytes()) / 1e3,
    }


def server_rows(measured: Measured) -> Iterator[Row]:
    yield Row(
        f"resident memory of the server after {measured['num_messages']:,} messages",
        f"{measured['rss_mb']:.0f} MB",
        "<= 150 MB",
        f"with {measured['num_viewers']} viewers {measured['rss_with_viewers_mb']:.0f} MB",
    )
    yield Row("the server, idle", f"{measured['idle_share']:.2%} of a core", "<= 1 %")
    viewers = f"the server, {measured['num_viewers']} viewers and {measured['events_per_s']:.0f} events a second"
    yield Row(viewers, f"{measured['share_with_viewers']:.1%} of a core", "<= 10 %")
    yield Row("scripts and styles, compressed", f"{measured['static_kb']:.0f} kB", "<= 120 kB")


async def _share_of_a_core(pool: ServedPool, seconds: float) -> float:
    await asyncio.sleep(1.0)
    loop = asyncio.get_running_loop()
    before_s, began_s = used_s(pool.server), loop.time()
    await asyncio.sleep(seconds)
    return (used_s(pool.server) - before_s) / (loop.time() - began_s)


async def _add_nodes(pool: ServedPool) -> None:
    while True:
        await pool.add_node()
        await asyncio.sleep(_EVENT_SPACING_S)


@asynccontextmanager
async def _viewers(pool: ServedPool, count: int) -> AsyncIterator[None]:
    """Streams of the pool's changes, read as they arrive."""
    host = urlsplit(pool.origin).netloc
    cookie = "; ".join(f"{each.get('name')}={each.get('value')}" for each in await pool.page.context.cookies())
    request = f"GET /api/stream HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\n\r\n".encode()
    address, _, port = host.partition(":")
    streams = [await asyncio.open_connection(address, int(port)) for _ in range(count)]

    async def read_all(reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass

    for _, writer in streams:
        writer.write(request)
    reading = [asyncio.create_task(read_all(reader)) for reader, _ in streams]
    await asyncio.sleep(5.0)  # each gets the whole pool first
    try:
        yield
    finally:
        for task in reading:
            task.cancel()
        for _, writer in streams:
            writer.close()


def _compressed_bytes() -> Iterator[int]:
    return (len(gzip.compress(file.read_bytes())) for file in STATIC.rglob("*") if file.suffix in (".js", ".css"))
