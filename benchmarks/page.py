"""`python -m benchmarks.page`: from an event in the ledger to a changed pixel in a browser, and the first view.

Needs Debian's Chromium and the extra `page`. A real nats-server, `eflow ui` as a process, and one browser.
"""

import asyncio
import json
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer
from playwright.sync_api import Page, sync_playwright  # pyright: ignore[reportMissingImports]

from elasticflow.shared.messages import events
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from tests.support.page_ledger import POOL, page_history, records
from tests.support.served_page import served_page

# Resolves with the time at which the browser has painted a sentence with this name.
_PAINTED = """name => new Promise(resolve => {
    const look = () => document.querySelector('.feed')?.textContent.includes(name + ' joined')
        ? requestAnimationFrame(() => resolve(Date.now() / 1000)) : requestAnimationFrame(look);
    look();
})"""


def main(num_events: Annotated[int, typer.Option(min=1)] = 40) -> None:
    """Print the times in seconds as JSON."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(Path(folder)) as server,
        ThreadPoolExecutor() as threads,
    ):
        _in_thread(threads, _append_all, server.url)
        with served_page(environment={"NATS_URL": server.url}) as link, sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(link)
            page.wait_for_selector(".feed li")
            first_view_s = _first_view_s(page)
            delays_s = sorted(_delay_s(page, threads, server.url, number) for number in range(num_events))
            browser.close()
    p95_s = delays_s[min(len(delays_s) - 1, int(0.95 * len(delays_s)))]
    print(json.dumps({"first_view_s": first_view_s, "median_s": delays_s[len(delays_s) // 2], "p95_s": p95_s}))


def _first_view_s(page: Page) -> float:
    began_s = time.monotonic()
    page.reload()
    page.wait_for_selector(".feed li")
    return time.monotonic() - began_s


def _delay_s(page: Page, threads: ThreadPoolExecutor, url: str, number: int) -> float:
    """From the append of a node that joins to its sentence on the screen."""
    name = f"late-{number}"
    stored_at_s = threads.submit(asyncio.run, _append_node(url, name))
    painted_at_s: float = page.evaluate(_PAINTED, name)
    return painted_at_s - stored_at_s.result()


async def _append_node(url: str, name: str) -> float:
    """Returns when the append began, in seconds since 1970."""
    node = events.NodeJoined(node_id=name, incarnation="first", num_gpus=4, device="cpu", at_s=time.time())  # noqa: TID251
    record = list(records(page_history().then(node)))[-1]
    bus = await connect_nats(url, name="benchmark")
    began_s = time.time()  # noqa: TID251 - the browser's clock is the same
    await bus.append(record.subject, record.data, message_id=name)
    await bus.close()
    return began_s


async def _append_all(url: str) -> None:
    bus = await connect_nats(url, name="benchmark")
    await bus.ensure_pool(POOL)
    for record in records(page_history()):
        await bus.append(record.subject, record.data, message_id=record.message_id)
    await bus.close()


def _in_thread(threads: ThreadPoolExecutor, call: Any, *arguments: Any) -> Any:
    """In a loop of its own, because Playwright's is that of this thread."""
    return threads.submit(asyncio.run, call(*arguments)).result()


if __name__ == "__main__":
    typer.run(main)
