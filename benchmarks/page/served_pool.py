"""A pool with a large ledger on a real nats-server, its page as a process, and a browser that has opened it."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from playwright.async_api import Page, ViewportSize, async_playwright  # pyright: ignore[reportMissingImports]

from benchmarks.page.ledgers import append_all
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
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
