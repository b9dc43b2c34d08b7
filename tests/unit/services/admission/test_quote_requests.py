"""Requests for quotes: tenants in turn, each at a limited rate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.msg import Msg

from elasticflow.services.admission import quote
from elasticflow.services.admission.quote import MAX_AT_ONCE, QUOTES_PER_S, QuoteRequests
from elasticflow.shared.errors import MaybeStored
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import DeadlineQuoted, MessageRejected
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus.contract import MAX_INBOX, MAX_INBOX_BYTES
from elasticflow.shared.runtime.bus.nats.connection import ReplyInbox
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog

POOL = "p"
QUOTED = DeadlineQuoted(earliest_deadline_s=None, at_s=0.0)


class Clock:
    """It stands still until it is set."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now_s(self) -> float:
        return self.at_s

    async def sleep_until(self, at_s: float) -> None:
        raise AssertionError("nothing here waits for an instant")


class Asked:
    """A bus with quotes that were asked before admission looks, and the tenants in the order of their answers."""

    def __init__(self) -> None:
        self.bus, self.clock, self.order = MemoryBus(), Clock(), list[str]()

    def answer(self, data: bytes, tenant: str) -> codec.Message:
        self.order.append(tenant)
        return QUOTED

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        await self.bus.ensure_pool(POOL)
        self.replies = await self.bus.subscribe("_INBOX.quotes")
        requests = await self.bus.subscribe(subjects.quote("*", POOL))
        quotes = QuoteRequests(self.bus, POOL, self.answer, self.clock, SilentLog())
        task: asyncio.Task[None] | None = None
        try:
            yield
            task = asyncio.create_task(quotes.run(requests))
        finally:
            self.task = task

    async def ask(self, tenant: str, times: int = 1, data: bytes = b"?") -> None:
        for _ in range(times):
            await self.bus.publish(subjects.quote(tenant, POOL), data, reply="_INBOX.quotes")

    async def replied(self, times: int) -> list[type[object]]:
        async with asyncio.timeout(60):
            return [type(codec.decode((await anext(self.replies)).data).message) for _ in range(times)]

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})


async def test_the_quotes_of_one_tenant_do_not_keep_another_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote, "LEAST_QUOTE_S", 60.0)
    asked = Asked()
    async with asked.answering():
        await asked.ask("flood", 15)
        await asked.ask("patient", 2)
    await asked.replied(17)
    await asked.end()
    assert asked.order[:4] == ["flood", "patient", "flood", "patient"]
    assert len(asked.order) == 17


async def test_a_tenant_with_expensive_quotes_gets_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote, "REST", 0.0)
    asked, at_s = Asked(), 0.0

    def answer(data: bytes, tenant: str) -> codec.Message:
        nonlocal at_s
        asked.order.append(tenant)
        at_s += 300.0 if tenant == "flood" else 100.0
        return QUOTED

    monkeypatch.setattr(asked, "answer", answer)
    monkeypatch.setattr(quote, "monotonic", lambda: at_s)
    async with asked.answering():
        await asked.ask("flood", 3)
        await asked.ask("patient", 9)
    await asked.replied(12)
    await asked.end()
    assert asked.order == ["flood", "patient", "patient", "patient"] * 3


async def test_a_tenant_that_asks_too_often_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote, "MAX_REFUSALS_PER_S", 3)
    asked = Asked()
    async with asked.answering():
        await asked.ask("flood", 10 * MAX_AT_ONCE)
        await asked.ask("patient")
    kinds = await asked.replied(MAX_AT_ONCE + 4)
    assert kinds.count(MessageRejected) == 3, "further requests are dropped: each answer costs time too"
    assert kinds.count(DeadlineQuoted) == MAX_AT_ONCE + 1
    assert asked.order.count("patient") == 1

    asked.clock.at_s += 2.5 / QUOTES_PER_S
    await asked.ask("flood", 10)
    assert (await asked.replied(2)) == [DeadlineQuoted] * 2, "it may ask again, as often as the time allows"
    await asked.end()


async def test_quotes_that_cannot_be_sent_are_one_line_of_each_tenant_and_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their senders decide how many there are."""
    lines, asked, all_asked = list[tuple[str, dict[str, Any]]](), Asked(), asyncio.Event()

    class Log(SilentLog):
        def warning(self, event: str, **keys: Any) -> None:
            lines.append((event, keys))

    async def publish(subject: str, data: bytes, **_: Any) -> None:
        asked.order.append(subject)
        if len(asked.order) == 10:
            all_asked.set()
        raise MaybeStored(subject, "quote")

    monkeypatch.setattr(quote, "REST", 0.0)
    requests = await asked.bus.subscribe(subjects.quote("*", POOL))
    await asked.ask("loud", 9)
    await asked.ask("quiet")
    monkeypatch.setattr(asked.bus, "publish", publish)
    quotes = QuoteRequests(asked.bus, POOL, lambda data, tenant: QUOTED, asked.clock, Log())
    task = asyncio.create_task(quotes.run(requests))
    async with asyncio.timeout(60):
        await all_asked.wait()
    task.cancel()
    await asyncio.wait({task})
    assert [event for event, _ in lines] == ["quote not answered", "quote not answered", "RefusalsCounted"]
    assert (lines[2][1]["sender"], lines[2][1]["number"]) == ("loud", 8)


async def test_requests_that_wait_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote, "MAX_WAITING_BYTES", 25)
    asked = Asked()
    async with asked.answering():
        for tenant in ("a", "b", "c"):
            await asked.ask(tenant, data=b"?" * 10)
        await asked.ask("a", data=bytes(MAX_SUBMISSION_BYTES + 1))
    assert sorted(kind.__name__ for kind in await asked.replied(4)) == ["DeadlineQuoted"] * 2 + ["MessageRejected"] * 2
    await asked.ask("c", data=b"?" * 10)
    assert await asked.replied(1) == [DeadlineQuoted], "there is space again"
    await asked.end()


async def test_made_up_tenants_cost_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quote, "MAX_TENANTS", 10)
    asked = Asked()
    async with asked.answering():
        pass
    quotes = QuoteRequests(asked.bus, POOL, asked.answer, asked.clock, SilentLog())
    for number in range(100):
        quotes._tenant(f"tenant-{number}")
    assert len(quotes._tenants) <= 10
    await asked.end()


async def test_an_inbox_keeps_the_newest_messages() -> None:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    messages = await bus.subscribe("ef.telemetry.>")
    for number in range(MAX_INBOX + 5):
        await bus.publish("ef.telemetry.p.n", str(number).encode())
    assert (await anext(messages)).data == b"5"


async def test_an_inbox_has_a_bound_in_bytes() -> None:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    messages = await bus.subscribe("ef.telemetry.>")
    nats_client: Any = None
    inbox = ReplyInbox(MAX_INBOX)
    size = MAX_INBOX_BYTES // 20
    for number in range(25):
        data = bytes([number]) * size
        await bus.publish("ef.telemetry.p.n", data)
        await inbox.on_message(Msg(nats_client, "ef.telemetry.p.n", data=data))
    assert (await anext(messages)).data[0] == 5
    assert inbox.take().data[0] == 5
    await inbox.on_message(Msg(nats_client, "ef.telemetry.p.n", data=bytes(size)))
    assert inbox.take().data[0] == 6
