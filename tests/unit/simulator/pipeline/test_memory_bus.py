"""What only the bus in memory can do: time at will, and faults from a seed."""

import asyncio
from typing import Any

import numpy as np
import pytest

from elasticflow.shared.errors import MaybeStored, RequestTimeout
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.subjects import tasks
from elasticflow.shared.runtime.service.leader_lease import Lease
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker, matches
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.memory_link import FaultSource, LinkFaults
from tests.support.service_contexts import service_context
from tests.support.virtual_clock import VirtualClock

FACT = "ef.ledger.p.job.j"
SUBMIT = "ef.submit.t.p"


async def ledger(bus: MemoryBus) -> list[LedgerRecord]:
    batches = [b async for b in bus.read("p", after_sequence=0, up_to=await bus.last_sequence("p"))]
    return [stored for batch in batches for stored in batch]


@pytest.mark.parametrize(
    ("pattern", "subject", "fits"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.b", "a", False),
    ],
)
def test_wildcards_mean_what_they_mean_to_nats(pattern: str, subject: str, fits: bool) -> None:
    assert matches(pattern, subject) is fits


async def test_work_comes_again_when_its_time_has_come() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    queue = await bus.work("p", "w")
    await bus.append(SUBMIT, b"job", message_id="1")
    assert len(await queue.pull(1, 0.0)) == 1
    waiting = asyncio.create_task(queue.pull(1, 100.0))
    await asyncio.sleep(0)
    await clock.advance_to(29.0)
    assert not waiting.done()
    await clock.advance_to(30.0)
    (item,) = await waiting
    assert item.num_delivered == 2
    await item.nak(5.0)
    waiting = asyncio.create_task(queue.pull(1, 3.0))
    await asyncio.sleep(0)
    await clock.advance_to(33.0)
    assert await waiting == []


async def test_a_lease_follows_the_clock() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    first, second = (
        Lease(service_context(bus, "p", clock, instance=name), "lead", ttl_s=lambda: 10) for name in ("first", "second")
    )
    reported: list[tuple[str, bool]] = []
    holding = asyncio.create_task(first.hold(lambda held: reported.append(("first", held))))
    await asyncio.sleep(0)
    for now_s in range(0, 60, 5):
        await clock.advance_to(now_s)
        assert first.held
        assert not await second.try_acquire()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert reported == [("first", True), ("first", False)]
    assert await second.try_acquire()
    assert not await first.try_acquire()
    await clock.advance_to(100.0)
    assert not second.held
    assert await first.try_acquire()


async def test_a_renewal_whose_answer_comes_after_the_lease_has_run_out_is_reported() -> None:
    """Its holder kept silent meanwhile, and has decisions to make up for."""
    clock = VirtualClock()
    lease_s, waits_for_renewal = 3, asyncio.Event()

    class SlowBus(MemoryBus):
        async def put_value(self, *args: Any, **changes: Any) -> int:
            revision = await super().put_value(*args, **changes)
            if clock.now_s() == 1.0:
                waits_for_renewal.set()
                await clock.sleep_until(3.5)
            return revision

    bus = SlowBus(clock=clock)
    await bus.ensure_pool("p")
    reported: list[tuple[float, bool]] = []
    lease = Lease(service_context(bus, "p", clock), "lead", ttl_s=lambda: lease_s)
    holding = asyncio.create_task(lease.hold(lambda held: reported.append((clock.now_s(), held))))
    await asyncio.sleep(0)
    await clock.advance_to(1.0)
    await waits_for_renewal.wait()
    await clock.advance_to(3.4)
    assert not lease.held
    await clock.advance_to(3.5)
    await asyncio.sleep(0)
    assert lease.held
    assert reported == [(0.0, True), (3.5, True)]
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_a_lease_counts_from_its_request() -> None:
    """The server counts from a later instant, so that no other candidate holds it at the same time."""
    clock = VirtualClock()

    class SlowBus(MemoryBus):
        async def put_value(self, *args: Any, **changes: Any) -> int:
            revision = await super().put_value(*args, **changes)
            await clock.advance_to(4.0)
            return revision

    bus = SlowBus(clock=clock)
    await bus.ensure_pool("p")
    lease = Lease(service_context(bus, "p", clock), "lead", ttl_s=lambda: 10)
    assert await lease.try_acquire()
    await clock.advance_to(9.9)
    assert lease.held
    await clock.advance_to(10.0)
    assert not lease.held


async def test_a_request_times_out_by_the_clock() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.subscribe("q")
    asking = asyncio.create_task(bus.request("q", b"", 7.0))
    await asyncio.sleep(0)
    await clock.advance_to(7.0)
    with pytest.raises(RequestTimeout):
        await asking


async def test_the_id_of_a_fact_is_forgotten_after_two_minutes() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    assert await bus.append(FACT, b"", message_id="1") == 1
    await clock.advance_to(119.0)
    assert await bus.append(FACT, b"", message_id="1") == 1
    await clock.advance_to(121.0)
    assert await bus.append(FACT, b"", message_id="1") == 2


async def history(seed: int) -> list[tuple[str, str]]:
    """Three writers over a faulty bus: what the ledger held then."""
    faults = LinkFaults(maybe_stored=0.3, duplicate=0.2, max_delay_turns=5)
    broker = MemoryBroker()
    clock = VirtualClock()
    setup = MemoryBus(broker, clock=clock)
    await setup.ensure_pool("p")
    rngs = np.random.default_rng(seed).spawn(3)

    async def write(name: int) -> None:
        bus = MemoryBus(broker, clock=clock, faults=FaultSource(faults, rngs[name]))
        for i in range(20):
            await bus.append_event(f"{FACT}{name}", b"", message_id=f"{name}-{i}")

    await asyncio.gather(*(write(name) for name in range(3)))
    return [(stored.subject, stored.message_id) for stored in await ledger(setup)]


async def test_facts_survive_faults_and_a_seed_tells_the_same_story() -> None:
    first, again, other = await history(1), await history(1), await history(2)
    assert first == again
    assert first != other
    assert {message_id for _, message_id in first} == {f"{n}-{i}" for n in range(3) for i in range(20)}
    assert len(first) > 60, "some messages came twice"


async def test_maybe_stored_means_maybe() -> None:
    bus = MemoryBus(faults=FaultSource(LinkFaults(maybe_stored=1.0), np.random.default_rng(0)))
    await bus.ensure_pool("p")
    for i in range(50):
        with pytest.raises(MaybeStored):
            await bus.append(FACT, b"", message_id=str(i))
    assert 10 < await bus.last_sequence("p") < 40


async def test_a_bundle_is_stored_twice_by_a_fault_and_each_copy_is_settled() -> None:
    bus = MemoryBus(faults=FaultSource(LinkFaults(duplicate=1.0), np.random.default_rng(0)))
    await bus.ensure_pool("p")
    queue = await bus.tasks("p", "load")
    await bus.append(tasks("p", "load"), b"bundle", message_id="1")
    items = [*await queue.pull(5, 1.0), *await queue.pull(5, 1.0)]
    assert [(item.sequence, item.num_delivered) for item in items] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    for item in items:
        await item.ack()
    assert await queue.pull(5, 0.0) == []


async def test_a_deleted_load_wakes_no_queue() -> None:
    """Otherwise its pull would look again without end at the time when a bundle was to come back."""
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    queue = await bus.tasks("p", "load")
    await bus.append(tasks("p", "load"), b"bundle", message_id="1")
    (item,) = await queue.pull(1, 1.0)
    await bus.delete_load("p", "load", with_results=False)
    await item.nak()
    waiting = asyncio.create_task(queue.pull(1, 100.0))
    await asyncio.sleep(0)
    await clock.advance_to(100.0)
    assert await waiting == []


async def test_plain_messages_are_repeated_and_reordered() -> None:
    bus = MemoryBus(faults=FaultSource(LinkFaults(duplicate=0.3, reorder=0.3), np.random.default_rng(0)))
    listener = await bus.subscribe("t")
    for i in range(50):
        await bus.publish("t", b"%d" % i)
    await bus.publish("end", b"")
    received: list[int] = []
    while len(set(received)) < 50:
        received.append(int((await anext(listener)).data))
    assert len(received) > 50
    assert received != sorted(received)


async def test_work_items_come_twice() -> None:
    bus = MemoryBus(faults=FaultSource(LinkFaults(duplicate=1.0), np.random.default_rng(0)))
    await bus.ensure_pool("p")
    queue = await bus.work("p", "w")
    await bus.append(SUBMIT, b"job", message_id="1", expected_last_subject_sequence=0)
    (first,) = await queue.pull(5, 1.0)
    (second,) = await queue.pull(5, 1.0)
    assert (first.num_delivered, second.num_delivered) == (1, 2)
    await first.ack()
    await second.ack()
    assert await queue.pull(5, 0.0) == []
