"""The page of a live pool: changes appear, and a lost server is told, without a reload."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.histories import NOW_S
from testbed.page_ledger import POOL, page_history, records
from testbed.served_page import served_page
from tests.page.conftest import Viewer, opened


@pytest.fixture
def live_pool(nats_server: EmbeddedServer) -> EmbeddedServer:
    """A server that has the recorded ledger as its pool."""
    append(nats_server, list(records(page_history())))
    return nats_server


@pytest.fixture
def viewer(browser: Any, live_pool: EmbeddedServer) -> Iterator[Viewer]:
    with served_page(environment={"NATS_URL": live_pool.url}) as link, opened(browser, link) as viewer:
        yield viewer


def append(server: EmbeddedServer, stored: list[LedgerRecord]) -> None:
    """In a thread of its own, because Playwright's event loop is that of this one."""

    async def connect_and_append() -> None:
        bus = await connect_nats(server.url, name="test")
        await bus.ensure_pool(POOL)
        for record in stored:
            await bus.append(record.subject, record.data, message_id=record.message_id)
        await bus.close()

    with ThreadPoolExecutor() as threads:
        threads.submit(asyncio.run, connect_and_append()).result()


def joined() -> list[LedgerRecord]:
    """One more message: a node joins."""
    history = page_history()
    node = events.NodeJoined(node_id="late-node", incarnation="first", num_gpus=4, device="cpu", at_s=NOW_S + 60.0)
    return list(records(history.then(node)))[-1:]


def test_a_change_and_an_outage_appear_without_a_reload(viewer: Viewer, live_pool: EmbeddedServer) -> None:
    page = viewer.page
    page.evaluate("globalThis.isSamePage = true")
    page.wait_for_selector(".feed >> text=at risk")
    live_pool.kill()
    page.wait_for_selector("[role=alert] >> text=Stale since")
    live_pool.start()
    page.wait_for_selector("[role=alert]", state="detached")
    append(live_pool, joined())
    page.wait_for_selector(".feed >> text=late-node joined with 4 GPUs")
    assert page.evaluate("globalThis.isSamePage") is True
    assert viewer.problems == []
