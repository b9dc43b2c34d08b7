"""How the monitor learns of stored heartbeats, and what its attempt to fence a node finds."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.monitor.model import Connected, FenceNode, HeartbeatStored, NodeIsFenced
from elasticflow.services.monitor.node_watch import NodeWatch
from elasticflow.shared.errors import Unavailable
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import NodeFenced, NodeReported
from elasticflow.shared.runtime.bus.streams import node_bucket
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog

POOL, NODE = "pool-a", "node-0"
TIMEOUT_S = 60.0
A, B = (NodeReported(node_id=NODE, incarnation=incarnation, at_s=1.0) for incarnation in ("a-0", "b-0"))
FENCE_A = NodeFenced(node_id=NODE, incarnation="a-0", at_s=1.0)


class Watched:
    """A running watch, and what it notes."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus, self.folded, self.unreadable = bus, PoolState(), list[Any]()
        self._notes: asyncio.Queue[Any] = asyncio.Queue()
        self.watch = NodeWatch(
            bus, POOL, SystemClock(), SilentLog(), on_unreadable=lambda message, error: self.unreadable.append(error)
        )
        host: Any = SimpleNamespace(note=self._notes.put_nowait, folded=self.folded)
        self.task = asyncio.create_task(self.watch.run(host))

    async def next_note(self) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while isinstance(note := await self._notes.get(), Connected):
                pass
        return note

    async def put(self, message: codec.Message) -> int:
        data = codec.encode(message, id="", recorded_at_s=1.0)
        return await self.bus.put_value(node_bucket(POOL), NODE, data)

    async def stored(self) -> codec.Message | None:
        value = await self.bus.get_value(node_bucket(POOL), NODE)
        return codec.decode(value.data).message if value is not None else None

    def fence(self, revision: int) -> None:
        self.watch.act(FenceNode(node_id=NODE, incarnation="a-0", revision=revision))


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    watched = Watched(bus)
    await asyncio.sleep(0)  # it subscribes
    await asyncio.sleep(0)
    yield watched
    watched.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watched.task


async def test_a_watch_that_starts_while_the_server_cannot_answer_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe, subscribed = MemoryBus.subscribe, asyncio.Event()
    failures = [Unavailable("nats://h", "no reply")] * 2

    async def late(bus: MemoryBus, subject: str, queue: str = "") -> Any:
        if failures:
            raise failures.pop()
        subscription = await subscribe(bus, subject, queue)
        subscribed.set()
        return subscription

    monkeypatch.setattr(MemoryBus, "subscribe", late)
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    watched = Watched(bus)
    async with asyncio.timeout(TIMEOUT_S):
        await subscribed.wait()
    await watched.put(A)
    assert await watched.next_note() == HeartbeatStored(heartbeat=A, revision=1)
    watched.task.cancel()
    await asyncio.wait({watched.task})


FENCED = NodeIsFenced(node_id=NODE, incarnation="a-0")


async def test_a_stored_heartbeat_arrives_with_its_revision(watched: Watched) -> None:
    for revision in (1, 2):
        await watched.put(A)
        assert await watched.next_note() == HeartbeatStored(heartbeat=A, revision=revision)


async def test_a_heartbeat_that_is_not_stored_is_unreadable(watched: Watched) -> None:
    data = codec.encode(A, id="", recorded_at_s=1.0)
    await watched.bus.publish(subjects.telemetry(POOL, NODE), data)
    await watched.put(B)
    assert await watched.next_note() == HeartbeatStored(heartbeat=B, revision=1)
    assert [error.problems for error in watched.unreadable] == [("revision: NATS has not stored this heartbeat",)]


async def test_a_fence_replaces_the_last_heartbeat(watched: Watched) -> None:
    revision = await watched.put(A)
    await watched.next_note()
    watched.fence(revision)
    assert await watched.next_note() == FENCED
    assert isinstance(await watched.stored(), NodeFenced)


async def test_a_fence_fails_if_a_newer_heartbeat_is_stored(watched: Watched) -> None:
    revision = await watched.put(A)
    await watched.put(A)
    await watched.next_note()
    await watched.next_note()
    watched.fence(revision)
    assert await watched.next_note() == HeartbeatStored(heartbeat=A, revision=2)
    assert await watched.stored() == A


async def test_a_node_that_never_stored_a_heartbeat_is_fenced(watched: Watched) -> None:
    watched.fence(0)
    assert await watched.next_note() == FENCED
    assert isinstance(await watched.stored(), NodeFenced)


async def test_another_replica_may_have_fenced_the_node(watched: Watched) -> None:
    revision = await watched.put(A)
    await watched.next_note()
    await watched.put(FENCE_A)
    watched.fence(revision)
    assert await watched.next_note() == FENCED
    assert await watched.stored() == FENCE_A


async def test_the_record_of_a_later_incarnation_is_the_fence_of_the_earlier(watched: Watched) -> None:
    revision = await watched.put(A)
    await watched.put(B)
    await watched.next_note()
    await watched.next_note()
    watched.fence(revision)
    assert await watched.next_note() in (FENCED, HeartbeatStored(heartbeat=B, revision=3))
    assert await watched.next_note() in (FENCED, HeartbeatStored(heartbeat=B, revision=3))
    assert await watched.stored() == B, "and it stays"
