"""The webhook over a real HTTP server on loopback: at least once, by the leader only, with a bound of attempts."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.monitor import webhook
from elasticflow.services.monitor.service import MonitorSettings
from elasticflow.services.monitor.webhook import TOLD, Webhook
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.bus import streams
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.histories import NOW_S, History, pool
from tests.unit.services.monitor.test_notices import admitted

POOL = "p"
SECRET = "/hooks/secret-token"


class Receiver:
    """Answers with these statuses, one after the other, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.received = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{SECRET}?room=1"

    @property
    def told(self) -> list[str]:
        return [body["what"] for _, body in self.requests]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("Content-Length"))
        self.requests.append((head.splitlines()[0], json.loads(await reader.readexactly(length))))
        self.received.set()
        status = self.statuses.pop(0) if self.statuses else 200
        if status:  # 0: the connection ends without an answer
            writer.write(f"HTTP/1.1 {status} whatever\r\nContent-Length: 0\r\n\r\n".encode())
            await writer.drain()
        writer.close()


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = info


class Pool:
    """A monitor of a pool whose clock the test moves."""

    def __init__(self, history: History, bus: MemoryBus) -> None:
        self.history, self.bus, self.log, self.clock_s = history, bus, Log(), NOW_S
        self.leads = True

    @property
    def folded(self) -> Any:
        return self.history.state

    def webhook(self, url: str) -> Webhook:
        process: Any = SimpleNamespace(
            bus=self.bus,
            settings=SimpleNamespace(pool=POOL),
            clock=SimpleNamespace(now_s=lambda: self.clock_s),
            log=self.log,
        )
        host: Any = self
        return Webhook(process, host, url)


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    async with await asyncio.start_server(receiver.answer, "127.0.0.1", 0) as server:
        receiver.port = server.sockets[0].getsockname()[1]
        yield receiver


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool with a live job; attempts follow each other at once."""
    monkeypatch.setattr(webhook, "_FIRST_BACKOFF_S", 0.0)
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    return Pool(admitted(pool(4)), bus)


async def test_an_end_is_posted_once(one: Pool) -> None:
    async with receiving() as receiver:
        hook = one.webhook(receiver.url)
        await hook.tell()
        assert receiver.requests == []
        one.history.finished("j1", at_s=NOW_S + 40.0)
        one.clock_s = NOW_S + 41.0
        await hook.tell()
        await hook.tell()
        ((line, body),) = receiver.requests
        assert line == f"POST {SECRET}?room=1 HTTP/1.1"
        assert (body["pool"], body["job_id"], body["tenant"]) == (POOL, "j1", "lab")
        assert body["text"] == "j1 finished, 60 s before its deadline"
        assert (body["deadline_s"], body["margin_s"]) == (NOW_S + 100.0, 60.0)


async def test_the_next_leader_goes_on_where_the_last_one_stopped(one: Pool) -> None:
    async with receiving() as receiver:
        await one.webhook(receiver.url).tell()
        one.history.finished("j1", at_s=NOW_S + 40.0)
        one.clock_s = NOW_S + 10_000.0  # no monitor ran meanwhile
        await one.webhook(receiver.url).tell()
        assert receiver.told == ["finished"]
        one.clock_s = NOW_S + 20_000.0
        await one.webhook(receiver.url).tell()
        assert receiver.told == ["finished"]


async def test_a_new_webhook_is_not_told_what_happened_before(one: Pool) -> None:
    one.history.finished("j1", at_s=NOW_S + 40.0)
    one.clock_s = NOW_S + 10_000.0
    async with receiving() as receiver:
        await one.webhook(receiver.url).tell()
        assert receiver.requests == []


async def test_only_the_leader_posts(one: Pool) -> None:
    async with receiving() as receiver:
        hook = one.webhook(receiver.url)
        await hook.tell()
        one.leads = False
        one.history.finished("j1", at_s=NOW_S + 40.0)
        one.clock_s = NOW_S + 41.0
        await hook.tell()
        assert receiver.requests == []
        one.leads = True
        await hook.tell()
        assert receiver.told == ["finished"]


async def test_a_failed_post_is_repeated(one: Pool) -> None:
    async with receiving(500, 0, 302) as receiver:
        hook = one.webhook(receiver.url)
        await hook.tell()
        one.history.finished("j1", at_s=NOW_S + 40.0)
        one.clock_s = NOW_S + 41.0
        await hook.tell()
        assert receiver.told == ["finished"] * 4
        assert len({body["id"] for _, body in receiver.requests}) == 1


async def test_a_receiver_that_is_down_costs_a_bounded_number_of_attempts_and_no_secret(one: Pool) -> None:
    async with receiving(*[503] * webhook.ATTEMPTS) as receiver:
        hook = one.webhook(receiver.url)
        await hook.tell()
        one.history.finished("j1", at_s=NOW_S + 40.0)
        one.clock_s = NOW_S + 41.0
        await hook.tell()
        await hook.tell()
        assert len(receiver.requests) == webhook.ATTEMPTS
    event, fields = one.log.lines[-1]
    assert (event, fields["problem"]) == ("NoticeDropped", "status 503")
    assert "secret" not in repr(one.log.lines)


async def test_a_closed_port_or_a_silent_receiver_does_not_end_the_monitor(
    one: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "POST_TIMEOUT_S", 0.02)
    one.history.then()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        hook = one.webhook(f"http://127.0.0.1:{port}/")
        await hook.tell()
        one.history.finished("j1", at_s=NOW_S + 40.0)
        one.clock_s = NOW_S + 41.0
        await hook.tell()
    assert one.log.lines[-1][1]["problem"] == "no answer in time"
    again = Pool(admitted(pool(4)), one.bus)
    again.history.finished("j1", at_s=NOW_S + 42.0)
    again.clock_s = NOW_S + 43.0
    await again.webhook(f"http://127.0.0.1:{port}/").tell()
    assert again.log.lines[-1][1]["problem"] == "ConnectionRefusedError"


async def test_how_far_notices_are_told_is_kept(one: Pool) -> None:
    async with receiving() as receiver:
        await one.webhook(receiver.url).tell()
    kept = await one.bus.get_object(streams.snapshot_bucket(POOL), TOLD, max_bytes=100)
    assert float(kept) == NOW_S


@pytest.mark.parametrize("url", ["ftp://host/x", "host/secret", "http://", "http://user:secret@host/", "http://h:x/"])
def test_a_wrong_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(BadSettings, match="EF_WEBHOOK_URL: must be http") as wrong:
        MonitorSettings.from_environment({"EF_WEBHOOK_URL": url})
    assert "secret" not in str(wrong.value)


def test_a_url_is_optional() -> None:
    assert MonitorSettings.from_environment({}).webhook_url == ""
    assert MonitorSettings.from_environment({"EF_WEBHOOK_URL": "https://host/x"}).webhook_url == "https://host/x"
