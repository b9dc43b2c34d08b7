"""A pool with a large ledger on a real nats-server, its page as a process, and a browser that has opened it.

Also the server of the page: its memory, and its share of a core, idle and with viewers.
"""

import asyncio
import gzip
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from playwright.async_api import Page, ViewportSize, async_playwright  # pyright: ignore[reportMissingImports]

from benchmarks.page.ledgers import append_all
from benchmarks.report import Measured, Row
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.web.server import STATIC
from testbed.command_line import CommandLinePool, command_line_pool
from testbed.served_page import served_page

PATIENCE_MS = 120_000
_POLL_S = 0.2
_VIEWPORT: ViewportSize = {"width": 1280, "height": 900}


@dataclass(slots=True, kw_only=True)
class ServedPool:
    """page: a browser on it. server: the process of the page. num_messages: of the ledger."""

    url: str
    page: Page
    origin: str
    server: psutil.Process
    num_messages: int
    _num_nodes: int = field(default=0)

    async def go(self, address: str) -> None:
        """Show the page at this address, for example "replay", from its beginning."""
        await self.page.goto("about:blank")
        await self.page.goto(f"{self.origin}/#/{address}")
        await self.page.wait_for_selector("main h1", state="attached")

    async def add_node(self) -> tuple[str, float]:
        """Append a node that joins. Returns its name, and when the append began."""
        self._num_nodes += 1
        name = f"late-{self._num_nodes}"
        began_s = SystemClock().now_s()
        node = events.NodeJoined(node_id=name, incarnation="first", num_gpus=4, device="cpu", at_s=began_s)
        self.num_messages += 1
        await append_all(self.url, [node], first=self.num_messages)
        return name, began_s

    async def read_all(self) -> None:
        """Wait until the page has the whole ledger."""
        while await self._last_sequence() < self.num_messages:
            await asyncio.sleep(_POLL_S)

    async def _last_sequence(self) -> int:
        answer = await self.page.request.get(f"{self.origin}/api/session")
        return (await answer.json())["sources"]["live"]["last_sequence"]


@asynccontextmanager
async def browser_page(link: str) -> AsyncIterator[Page]:
    """Debian's Chromium, that has opened the link."""
    async with async_playwright() as started:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = await started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = await browser.new_page(viewport=_VIEWPORT)
        page.set_default_timeout(PATIENCE_MS)
        await page.goto(link)
        await page.wait_for_selector("header nav")
        yield page
        await browser.close()


def server_of_page() -> psutil.Process:
    """The one process of `eflow ui` that this process has started."""
    (server,) = [each for each in psutil.Process().children() if "ui" in each.cmdline()]
    return server


def used_s(process: psutil.Process) -> float:
    """Seconds of a core so far."""
    times = process.cpu_times()
    return times.user + times.system


@asynccontextmanager
async def page_of_jobs(*names: str) -> AsyncIterator[tuple[CommandLinePool, str]]:
    """A pool with a real admission and eight GPUs that has promised these jobs, and the link of its page."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder) / "nats") as nats:
        async with command_line_pool(nats.url, Path(folder)) as cli:
            for name in names:
                submitted = await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", name)
                assert submitted.status == 0, submitted.err
            link_of = served_page(environment=cli.environment())
            link = await asyncio.to_thread(link_of.__enter__)  # admission serves in this loop
            try:
                yield cli, link
            finally:
                await asyncio.to_thread(link_of.__exit__, None, None, None)


@asynccontextmanager
async def served_pool(messages: Sequence[Any]) -> AsyncIterator[ServedPool]:
    """The page has read the whole ledger when the body begins."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as nats:
        await append_all(nats.url, messages)
        with served_page(environment={"NATS_URL": nats.url}) as link:
            server = server_of_page()
            async with browser_page(link) as page:
                pool = ServedPool(
                    url=nats.url,
                    page=page,
                    origin=link.partition("/open")[0],
                    server=server,
                    num_messages=len(messages),
                )
                await page.wait_for_selector(".feed li")
                await pool.read_all()
                yield pool


# --- the server's memory, and its share of a core ------------------------------------------------------


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
