"""The contract of every bus: a bundle of a padding load goes to one executor, and its results stay until deleted."""

import asyncio
from contextlib import aclosing

import pytest

from elasticflow.shared.errors import BusClosed, StorageFull, TooLarge, UnknownStream
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES
from elasticflow.shared.runtime.bus.contract import MAX_BATCH, Batches, Bus, WorkItem, WorkQueue
from elasticflow.shared.runtime.bus.streams import StreamLimits
from tests.support.shared_pool import POOL, Connect, add_result, next_of, stored_results

LOAD = "load-1=0123456789abcdef"  # the names of two loads of one id
OTHER = "load-1=fedcba9876543210"


async def add_bundles(bus: Bus, load_id: str, count: int) -> list[bytes]:
    """Publish so many bundles; their bytes."""
    bundles = [f"{load_id}-{number}".encode() for number in range(count)]
    subject = subjects.tasks(POOL, load_id)
    await asyncio.gather(*(bus.append(subject, data, message_id=data.decode()) for data in bundles))
    return bundles


async def add_results(bus: Bus, load_id: str, count: int, *, start: int = 0) -> None:
    for index in range(start, start + count):
        await add_result(bus, load_id, index)


async def num_stored(bus: Bus, *load_ids: str) -> list[int]:
    return [len(await stored_results(bus, load_id)) for load_id in load_ids]


async def take(queue: WorkQueue, count: int) -> list[WorkItem]:
    items: list[WorkItem] = []
    async with asyncio.timeout(60):
        while len(items) < count:
            items += await queue.pull(count - len(items), 5.0)
    return items


async def next_results(results: Batches, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [stored.data for stored in await next_of(results)]
    return found


async def test_a_bundle_goes_to_one_executor_of_its_load(connect: Connect, bus: Bus) -> None:
    bundles = await add_bundles(bus, LOAD, 60)
    others = await add_bundles(bus, OTHER, 3)
    queues = [await (await connect()).tasks(POOL, LOAD) for _ in range(2)]
    done: list[bytes] = []

    async def execute(queue: WorkQueue) -> None:
        while len(done) < len(bundles):
            for item in await queue.pull(4, 0.5):
                done.append(item.data)
                await item.ack()

    async with asyncio.timeout(60):
        await asyncio.gather(*map(execute, queues))
    assert sorted(done) == sorted(bundles)
    other = await bus.tasks(POOL, OTHER)
    assert sorted(item.data for item in await take(other, 3)) == others


async def test_a_bundle_that_is_published_twice_comes_once(bus: Bus) -> None:
    subject = subjects.tasks(POOL, LOAD)
    first = await bus.append(subject, b"bundle", message_id="b1")
    assert await bus.append(subject, b"bundle", message_id="b1") == first
    queue = await bus.tasks(POOL, LOAD)
    (item,) = await queue.pull(5, 5.0)
    assert (item.subject, item.data, item.num_delivered) == (subject, b"bundle", 1)
    await item.ack()
    assert await queue.pull(5, 0.2) == []


async def test_a_waiting_executor_gets_the_next_bundle_and_one_that_was_returned(connect: Connect, bus: Bus) -> None:
    queue, other = await bus.tasks(POOL, LOAD), await (await connect()).tasks(POOL, LOAD)
    waiting = asyncio.create_task(queue.pull(1, 30.0))
    await add_bundles(bus, LOAD, 1)
    (item,) = await waiting
    await item.nak()  # the job is back
    (again,) = await other.pull(1, 5.0)
    assert (again.data, again.num_delivered) == (item.data, 2)
    await again.term()
    assert await queue.pull(1, 0.2) == []


async def test_bundles_of_a_dead_executor_come_back(connect: Connect, bus: Bus) -> None:
    doomed = await connect()
    bundles = await add_bundles(bus, LOAD, 3)
    await take(await doomed.tasks(POOL, LOAD, ack_wait_s=1.0), 3)
    await doomed.close()
    queue, again = await bus.tasks(POOL, LOAD, ack_wait_s=1.0), dict[bytes, int]()
    while len(again) < 3:
        (item,) = await take(queue, 1)
        again[item.data] = item.num_delivered
        await item.ack()
    assert sorted(again) == bundles
    assert min(again.values()) > 1


async def test_results_are_read_in_order_and_apart_from_those_of_other_loads(connect: Connect, bus: Bus) -> None:
    async with aclosing((await connect()).results(POOL, LOAD)) as results:
        for index in range(5):
            await add_results(bus, OTHER, 1, start=index)
            await add_results(bus, LOAD, 1, start=index)
        assert await next_results(results, 5) == [b"0", b"1", b"2", b"3", b"4"]
        await add_results(bus, OTHER, 1, start=5)
        await add_results(bus, LOAD, 1, start=5)
        (result,) = await next_of(results)
    assert (result.subject, result.sequence, result.data) == (subjects.results(POOL, LOAD, 5, 5), 12, b"5")
    assert result.stored_at_s > 0
    async with aclosing(bus.results(POOL, LOAD, after_sequence=8)) as results:
        assert await next_results(results, 2) == [b"4", b"5"]
    assert await num_stored(bus, LOAD, OTHER, "none") == [6, 6, 0]


async def test_many_results_come_in_batches(bus: Bus) -> None:
    total = 2 * MAX_BATCH + 100
    await asyncio.gather(*(add_result(bus, LOAD, index) for index in range(total)))
    found: list[int] = []
    async with aclosing(bus.results(POOL, LOAD)) as results:
        while len(found) < total:
            batch = await next_of(results)
            assert 1 <= len(batch) <= MAX_BATCH
            found += [stored.sequence for stored in batch]
    assert found == list(range(1, total + 1))


async def test_the_subjects_of_all_results_come_without_data(connect: Connect, bus: Bus) -> None:
    async with aclosing((await connect()).result_subjects(POOL, after_sequence=1)) as results:
        for load_id in (LOAD, OTHER, LOAD):
            await add_result(bus, load_id, 3, load_id.encode() * 1_000)
        await add_result(bus, LOAD, 4)
        found: list[LedgerRecord] = []
        while len(found) < 2:
            found += await next_of(results)
    assert [(stored.sequence, stored.data) for stored in found] == [(2, b""), (3, b"")]
    assert [subjects.tasks_of_results(stored.subject) for stored in found] == [(OTHER, 3, 3), (LOAD, 4, 4)]


async def test_results_are_deleted_up_to_a_sequence(bus: Bus) -> None:
    for index in range(4):
        await add_results(bus, LOAD, 1, start=index)
        await add_results(bus, OTHER, 1, start=index)
    for _ in range(2):
        await bus.delete_results(POOL, LOAD, up_to=4)
    assert [(stored.sequence, stored.data) for stored in await stored_results(bus, LOAD)] == [(5, b"2"), (7, b"3")]
    assert await num_stored(bus, OTHER) == [4]


async def test_a_deleted_load_leaves_nothing_to_other_loads(bus: Bus) -> None:
    for load_id in (LOAD, OTHER):
        await add_bundles(bus, load_id, 4)
        await add_results(bus, load_id, 4)
    queue = await bus.tasks(POOL, LOAD, ack_wait_s=1.0)
    assert len(await take(queue, 2)) == 2
    await bus.delete_load(POOL, LOAD, with_results=False)
    assert await queue.pull(4, 1.5) == []
    assert await num_stored(bus, LOAD, OTHER) == [4, 4]
    for _ in range(2):
        await bus.delete_load(POOL, LOAD, with_results=True)
    assert await num_stored(bus, LOAD, OTHER) == [0, 4]
    assert len(await take(await bus.tasks(POOL, OTHER), 4)) == 4
    await bus.delete_load(POOL, "never-made", with_results=True)


async def test_a_full_stream_refuses_tasks_and_results_until_some_leave(connect: Connect) -> None:
    bus = await connect(StreamLimits(task_bytes=10_000, result_bytes=10_000))
    await bus.ensure_pool(POOL)
    subject = subjects.tasks(POOL, LOAD)
    for number in range(2):
        await bus.append(subject, bytes(4_000), message_id=str(number))
        await add_result(bus, LOAD, number, bytes(4_000))
    with pytest.raises(StorageFull) as full:
        await bus.append(subject, bytes(4_000), message_id="2")
    assert full.value.subject == subject
    with pytest.raises(StorageFull):
        await add_result(bus, LOAD, 2, bytes(4_000))
    for item in await take(await bus.tasks(POOL, LOAD), 2):
        await item.ack()
    await bus.append_event(subject, bytes(4_000), message_id="2")
    await bus.delete_load(POOL, LOAD, with_results=True)
    await add_result(bus, OTHER, 2, bytes(4_000))


async def test_an_unknown_pool_has_no_loads(bus: Bus) -> None:
    for call in (
        add_result(bus, LOAD, 0, pool="nowhere"),
        bus.tasks("nowhere", LOAD),
        anext(bus.results("nowhere", LOAD)),
        anext(bus.result_subjects("nowhere", after_sequence=0)),
        bus.delete_results("nowhere", LOAD, up_to=1),
        bus.delete_load("nowhere", LOAD, with_results=True),
    ):
        with pytest.raises(UnknownStream):
            await call
    with pytest.raises(TooLarge):
        await add_result(bus, LOAD, 0, bytes(MAX_MESSAGE_BYTES + 100_000))


async def test_a_closed_bus_ends_the_wait_for_results_and_bundles(connect: Connect, bus: Bus) -> None:
    doomed = await connect()
    queue, results = await doomed.tasks(POOL, LOAD), doomed.results(POOL, LOAD)
    await add_bundles(bus, LOAD, 1)
    await add_results(bus, LOAD, 1)
    await take(queue, 1)
    await next_of(results)
    waiting = [asyncio.create_task(anext(results)), asyncio.create_task(queue.pull(1, 60.0))]
    await doomed.close()
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [BusClosed, BusClosed]
