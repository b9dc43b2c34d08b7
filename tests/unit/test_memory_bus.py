"""What only the bus in memory can do: time at will, and faults from a seed."""

import asyncio

import numpy as np
import pytest

from shared.errors import MaybeStored, RequestTimeout
from shared.runtime.bus import Stored
from shared.runtime.lease import Lease
from shared.runtime.memory_broker import MemoryBroker, matches
from shared.runtime.memory_bus import MemoryBus
from shared.runtime.memory_faults import Faults
from tests.virtual_clock import VirtualClock

FACT = "ef.ledger.p.job.j"
SUBMIT = "ef.submit.t.p"


async def ledger(bus: MemoryBus) -> list[Stored]:
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
        Lease(bus, "p", "lead", name, ttl_s=lambda: 10, clock=clock) for name in ("first", "second")
    )
    told: list[tuple[str, bool]] = []
    holding = asyncio.create_task(first.hold(lambda held: told.append(("first", held))))
    await asyncio.sleep(0)
    for now_s in range(0, 60, 5):
        await clock.advance_to(now_s)
        assert first.held
        assert not await second.try_acquire()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert told == [("first", True), ("first", False)]
    assert await second.try_acquire()
    assert not await first.try_acquire()
    await clock.advance_to(100.0)
    assert not second.held
    assert await first.try_acquire()


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
    faults = Faults(maybe_stored=0.3, duplicate=0.2, max_delay_turns=5)
    broker = MemoryBroker()
    clock = VirtualClock()
    setup = MemoryBus(broker, clock=clock)
    await setup.ensure_pool("p")
    rngs = np.random.default_rng(seed).spawn(3)

    async def write(name: int) -> None:
        bus = MemoryBus(broker, clock=clock, rng=rngs[name], faults=faults)
        for i in range(20):
            await bus.append_fact(f"{FACT}{name}", b"", message_id=f"{name}-{i}")

    await asyncio.gather(*(write(name) for name in range(3)))
    return [(stored.subject, stored.message_id) for stored in await ledger(setup)]


async def test_facts_survive_faults_and_a_seed_tells_the_same_story() -> None:
    first, again, other = await history(1), await history(1), await history(2)
    assert first == again
    assert first != other
    assert {message_id for _, message_id in first} == {f"{n}-{i}" for n in range(3) for i in range(20)}
    assert len(first) > 60, "some facts came twice"


async def test_maybe_stored_means_maybe() -> None:
    bus = MemoryBus(rng=np.random.default_rng(0), faults=Faults(maybe_stored=1.0))
    await bus.ensure_pool("p")
    for i in range(50):
        with pytest.raises(MaybeStored):
            await bus.append(FACT, b"", message_id=str(i))
    assert 10 < await bus.last_sequence("p") < 40


async def test_plain_messages_are_repeated_and_reordered() -> None:
    bus = MemoryBus(rng=np.random.default_rng(0), faults=Faults(duplicate=0.3, reorder=0.3))
    listener = await bus.subscribe("t")
    for i in range(50):
        await bus.publish("t", b"%d" % i)
    await bus.publish("end", b"")
    heard: list[int] = []
    while len(set(heard)) < 50:
        heard.append(int((await anext(listener)).data))
    assert len(heard) > 50
    assert heard != sorted(heard)


async def test_work_items_come_twice() -> None:
    bus = MemoryBus(rng=np.random.default_rng(0), faults=Faults(duplicate=1.0))
    await bus.ensure_pool("p")
    queue = await bus.work("p", "w")
    await bus.append(SUBMIT, b"job", message_id="1", expected_last_subject_sequence=0)
    (first,) = await queue.pull(5, 1.0)
    (second,) = await queue.pull(5, 1.0)
    assert (first.num_delivered, second.num_delivered) == (1, 2)
    await first.ack()
    await second.ack()
    assert await queue.pull(5, 0.0) == []
