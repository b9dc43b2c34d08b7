"""Who may write the record of a node, and when another executor of the same name may take it over."""

import asyncio
from typing import Any

import pytest

from elasticflow.services.executor.heartbeat import NodeRecord
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import NodeFenced, NodeReported
from elasticflow.shared.runtime.bus.streams import node_bucket
from elasticflow.simulator.pipeline.memory_bus import MemoryBus

POOL, NODE = "pool-a", "node-0"
LEASE_S = 3.0


class Executor:
    """One executor of node-0 by its record. now_s: of its boot clock."""

    def __init__(self, bus: MemoryBus, run_id: str, previous: str = "") -> None:
        self.now_s, self._run_id, self._num_beats = 100.0, run_id, 0
        self._record = NodeRecord(bus, POOL, NODE, run_id=run_id, previous_run_id=previous, boot_s=lambda: self.now_s)

    @property
    def num_replies(self) -> int:
        return self._record.num_replies(f"{self._run_id}-0")

    async def beats(self, num_losses: int = 0) -> bool:
        self._num_beats += 1
        return await self._record.store(heartbeat(f"{self._run_id}-{num_losses}", at_s=float(self._num_beats)))


def heartbeat(incarnation: str, *, at_s: float = 1.0) -> NodeReported:
    return NodeReported(node_id=NODE, incarnation=incarnation, at_s=at_s, lease_s=LEASE_S)


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    return bus


async def put(bus: MemoryBus, data: bytes) -> None:
    await bus.put_value(node_bucket(POOL), NODE, data)


def encoded(message: codec.Message) -> bytes:
    return codec.encode(message, id="", recorded_at_s=1.0)


async def test_each_heartbeat_replaces_the_one_before(bus: MemoryBus) -> None:
    executor = Executor(bus, "a")
    assert [await executor.beats() for _ in range(3)] == [True, True, True]
    value = await bus.get_value(node_bucket(POOL), NODE)
    assert value is not None
    assert value.revision == 3


async def test_after_a_lost_acknowledgement_one_read_is_enough(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply may take as long as the timeout of one."""
    executor, put_value, num_writes = Executor(bus, "a"), bus.put_value, 0
    await executor.beats()
    assert executor.num_replies == 1

    async def put_without_reply(*arguments: Any, **options: Any) -> int:
        await put_value(*arguments, **options)
        raise TimeoutError

    async def put_once(*arguments: Any, **options: Any) -> int:
        nonlocal num_writes
        num_writes += 1
        return await put_value(*arguments, **options)

    monkeypatch.setattr(bus, "put_value", put_without_reply)
    with pytest.raises(TimeoutError):
        await executor.beats()
    assert executor.num_replies == 2
    monkeypatch.setattr(bus, "put_value", put_once)
    assert await executor.beats()
    assert (executor.num_replies, num_writes) == (1, 1)


async def test_a_monitor_that_writes_the_record_again_is_no_executor(bus: MemoryBus) -> None:
    """It does so to learn that an incarnation has been replaced, at each restart."""
    await Executor(bus, "a").beats()
    second = Executor(bus, "b")
    for _ in range(4):
        assert not await second.beats()
        record = await bus.get_value(node_bucket(POOL), NODE)
        assert record is not None
        await put(bus, record.data)
    second.now_s += 2 * LEASE_S
    assert await second.beats()


async def test_a_second_executor_is_refused_while_the_first_is_alive(bus: MemoryBus) -> None:
    first, second = Executor(bus, "a"), Executor(bus, "b")
    for _ in range(2):
        assert await first.beats()
        assert not await second.beats()
    assert await first.beats()
    with pytest.raises(BadSettings, match="EF_NODE_ID='node-0': another executor of this name is alive"):
        await second.beats()
    assert await first.beats()


async def test_a_second_executor_waits_until_the_lease_of_the_first_is_over(bus: MemoryBus) -> None:
    first, second = Executor(bus, "a"), Executor(bus, "b")
    await first.beats()
    assert not await second.beats()
    second.now_s += LEASE_S
    assert not await second.beats()
    second.now_s += LEASE_S
    assert await second.beats()
    assert not await first.beats(), "its workers get no further lease"
    assert await second.beats()


async def test_a_heartbeat_on_its_way_when_its_executor_ended_is_no_sign_of_life(bus: MemoryBus) -> None:
    first, second = Executor(bus, "a"), Executor(bus, "b")
    await first.beats()
    assert not await second.beats()
    second.now_s += LEASE_S
    await first.beats()
    assert not await second.beats()
    second.now_s += LEASE_S
    assert not await second.beats(), "the lease counts from the newer heartbeat"
    second.now_s += LEASE_S
    assert await second.beats()


async def test_of_two_executors_that_start_at_once_one_is_refused(bus: MemoryBus) -> None:
    executors = Executor(bus, "a"), Executor(bus, "b")
    outcomes = [await asyncio.gather(*(executor.beats() for executor in executors)) for _ in range(2)]
    winner, loser = executors if outcomes[0][0] else executors[::-1]
    assert all(sum(outcome) == 1 for outcome in outcomes)
    assert await winner.beats()
    with pytest.raises(BadSettings):
        await loser.beats()


async def test_the_next_executor_of_the_same_machine_does_not_wait(bus: MemoryBus) -> None:
    await Executor(bus, "a").beats()
    assert await Executor(bus, "b", previous="a").beats()
    assert not await Executor(bus, "c", previous="a").beats()


async def test_a_fenced_incarnation_is_over_and_the_next_one_begins_at_once(bus: MemoryBus) -> None:
    executor = Executor(bus, "a")
    await executor.beats()
    await put(bus, encoded(NodeFenced(node_id=NODE, incarnation="a-0", at_s=2.0)))
    assert not await executor.beats()
    assert await executor.beats(num_losses=1)


async def test_a_fence_lets_another_executor_begin_at_once(bus: MemoryBus) -> None:
    await put(bus, encoded(NodeFenced(node_id=NODE, incarnation="a-0", at_s=2.0)))
    assert await Executor(bus, "b").beats()


async def test_an_unreadable_record_counts_as_that_of_a_live_executor(bus: MemoryBus) -> None:
    await put(bus, b"of a newer version")
    executor = Executor(bus, "a")
    assert not await executor.beats()
    executor.now_s += 2 * LEASE_S
    assert await executor.beats()


async def test_a_record_that_vanished_extends_no_lease(bus: MemoryBus) -> None:
    executor = Executor(bus, "a")
    await executor.beats()
    another = MemoryBus()
    await another.ensure_pool(POOL)
    bus.broker = another.broker
    assert not await executor.beats()
    assert await executor.beats(num_losses=1)


async def test_a_claim_tells_which_starts_the_replaced_incarnation_had_begun(bus: MemoryBus) -> None:
    starts = (("job-a", 3), ("job-b", 1))
    known = NodeReported(
        node_id=NODE, incarnation="a-0", at_s=7.0, lease_s=LEASE_S, starts=starts, preparations=starts[:1]
    )
    await put(bus, encoded(known))
    record = NodeRecord(bus, POOL, NODE, run_id="b", previous_run_id="a", boot_s=lambda: 100.0)
    assert await record.store(heartbeat("b-0"))
    assert (record.replaced, record.replaced_heard_s, record.replaced_starts) == ("a-0", 7.0, starts)
    assert record.replaced_preparations == starts[:1]
    assert await record.store(heartbeat("b-1"))
    assert record.replaced_starts is None, "an incarnation that names none says nothing"
    assert record.replaced_preparations == ()
