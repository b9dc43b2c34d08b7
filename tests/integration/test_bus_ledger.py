"""The contract of every bus: pools and their ledgers."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from elasticflow.shared.errors import (
    BadSettings,
    LedgerBroken,
    LedgerTruncated,
    TooLarge,
    UnknownStream,
    WrongExpectedSequence,
)
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import NodeLost
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES
from elasticflow.shared.runtime.bus.contract import MAX_BATCH, Bus
from elasticflow.shared.runtime.process.clock import SystemClock
from tests.support.shared_pool import PLAN, POOL, Connect, job, next_of, read_all


async def test_a_pool_is_made_once_by_many_at_once(connect: Connect) -> None:
    buses = [await connect() for _ in range(3)]
    await asyncio.gather(*(bus.ensure_pool(POOL) for bus in buses))
    await buses[0].ensure_pool("pool-b")
    assert await buses[0].pools() == (POOL, "pool-b")
    assert await buses[0].pool_exists(POOL)
    assert not await buses[0].pool_exists("pool-c")
    assert not await buses[0].pool_exists("no.such pool")


async def test_a_pool_with_a_bad_name_is_refused(bus: Bus) -> None:
    with pytest.raises(BadSettings, match="letters"):
        await bus.ensure_pool("a.b")


async def test_what_is_appended_is_read_back_in_order(bus: Bus) -> None:
    sequences = [await bus.append(job(i), b"%d" % i, message_id=f"id-{i}") for i in range(5)]
    stored = await read_all(bus)
    assert sequences == [1, 2, 3, 4, 5] == [message.sequence for message in stored]
    assert [message.subject for message in stored] == [job(i) for i in range(5)]
    assert [message.data for message in stored] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.message_id for message in stored] == [f"id-{i}" for i in range(5)]
    assert abs(stored[0].stored_at_s - SystemClock().now_s()) < 60
    end = await bus.ledger_end(POOL)
    assert end.sequence == await bus.last_sequence(POOL) == 5
    assert abs(end.at_s - SystemClock().now_s()) < 60
    assert await bus.last_subject_sequence(job(2)) == 3
    assert await bus.last_subject_sequence(subjects.job(POOL, "*")) == 5
    assert await bus.last_subject_sequence(PLAN) == 0


async def test_any_bytes_survive(bus: Bus) -> None:
    blobs = [b"", b"\r\n", bytes(range(256)), b"x" * 1_000_000]
    for number, blob in enumerate(blobs):
        await bus.append(PLAN, blob, message_id=str(number))
    assert [message.data for message in await read_all(bus)] == blobs


async def test_only_one_of_concurrent_decisions_is_stored(connect: Connect, bus: Bus) -> None:
    rivals = [bus, await connect(), await connect()]
    seen = await bus.append(PLAN, b"first", message_id="first", expected_last_subject_sequence=0)
    await bus.append(job(1), b"a fact between", message_id="fact")
    results = await asyncio.gather(
        *(
            rival.append(PLAN, b"%d" % i, message_id=f"rival-{i}", expected_last_subject_sequence=seen)
            for i, rival in enumerate(rivals)
        ),
        return_exceptions=True,
    )
    winners = [result for result in results if isinstance(result, int)]
    losers = [result for result in results if isinstance(result, WrongExpectedSequence)]
    assert len(winners) == 1
    assert len(losers) == 2
    assert (losers[0].subject, losers[0].expected) == (PLAN, seen)
    assert {loser.found for loser in losers} <= {winners[0], None}, "the error has the actual sequence, or none"
    assert await bus.last_subject_sequence(PLAN) == winners[0]


async def test_a_repeat_with_the_same_id_is_not_stored_again(bus: Bus) -> None:
    first = await bus.append(PLAN, b"x", message_id="same", expected_last_subject_sequence=0)
    assert await bus.append(PLAN, b"x", message_id="same") == first
    with pytest.raises(WrongExpectedSequence):
        await bus.append(PLAN, b"x", message_id="same", expected_last_subject_sequence=0)
    assert await bus.append_event(PLAN, b"x", message_id="same") == first
    assert await bus.last_sequence(POOL) == 1


async def test_no_other_message_takes_the_place_of_one_by_its_id(connect: Connect, bus: Bus) -> None:
    """A node could foresee the id of the message that declares another one lost."""
    lost = NodeLost(node_id="n2", incarnation="one", reason="silent", at_s=7.0)
    said, again = (codec.encode(replace(lost, at_s=at_s), id="lost", recorded_at_s=at_s) for at_s in (7.0, 8.0))
    forged = await bus.append(job(1), said, message_id="lost")
    junk = await bus.append(job(2), b"junk", message_id="junk")
    monitor = await connect()
    assert await monitor.append_event(subjects.node(POOL, "n2"), said, message_id="lost") > forged, "another subject"
    assert await monitor.append_event(job(2), again, message_id="junk") > junk, "another content"
    assert await bus.append(job(1), again, message_id="lost") == forged, "the same report at another time"
    assert [(each.subject, each.data) for each in await read_all(bus)] == [
        (job(1), said),
        (job(2), b"junk"),
        (subjects.node(POOL, "n2"), said),
        (job(2), again),
    ]


async def test_an_unknown_pool_stores_no_message(bus: Bus) -> None:
    with pytest.raises(UnknownStream) as caught:
        await bus.append("ef.ledger.nowhere.plan", b"", message_id="1")
    assert caught.value.subject == "ef.ledger.nowhere.plan"
    with pytest.raises(UnknownStream):
        await bus.last_sequence("nowhere")
    with pytest.raises(UnknownStream):
        await anext(bus.follow("nowhere", after_sequence=0))
    with pytest.raises(UnknownStream):
        await bus.work("nowhere", "w")


async def test_the_largest_message_fits_and_a_larger_one_is_refused(bus: Bus) -> None:
    await bus.append(PLAN, bytes(MAX_MESSAGE_BYTES), message_id="m" * 200)
    with pytest.raises(TooLarge) as caught:
        await bus.append(PLAN, bytes(MAX_MESSAGE_BYTES + 100_000), message_id="2")
    assert caught.value.num_bytes > caught.value.limit_bytes
    await bus.append(PLAN, b"the connection is well", message_id="3")


async def test_following_starts_anywhere_and_continues_with_new_messages(connect: Connect, bus: Bus) -> None:
    for i in range(3):
        await bus.append(job(i), b"", message_id=str(i))
    follower = await connect()
    async with aclosing(follower.follow(POOL, after_sequence=1)) as ledger:
        stored_before = await next_of(ledger)
        while len(stored_before) < 2:  # a batch is what has arrived so far
            stored_before += await next_of(ledger)
        assert [stored.sequence for stored in stored_before] == [2, 3]
        await bus.append(job(3), b"new", message_id="3")
        (stored,) = await next_of(ledger)
        assert (stored.sequence, stored.data) == (4, b"new")


async def test_stored_messages_are_read_as_one_batch(bus: Bus) -> None:
    total = 2 * MAX_BATCH + 100
    await asyncio.gather(*(bus.append(job(i % 7), b"%d" % i, message_id=str(i), timeout_s=60.0) for i in range(total)))
    batches = [batch async for batch in bus.read(POOL, after_sequence=0, up_to=total)]
    assert max(map(len, batches)) <= MAX_BATCH
    assert len(batches) < total / 4
    sequences = [stored.sequence for batch in batches for stored in batch]
    assert sequences == list(range(1, total + 1))


async def test_reading_stops_in_the_middle(bus: Bus) -> None:
    for i in range(10):
        await bus.append(job(i), b"", message_id=str(i))
    batches = [batch async for batch in bus.read(POOL, after_sequence=3, up_to=7)]
    assert [stored.sequence for batch in batches for stored in batch] == [4, 5, 6, 7]
    assert [batch async for batch in bus.read(POOL, after_sequence=7, up_to=7)] == []


async def test_no_gap_under_concurrent_appends(connect: Connect, bus: Bus) -> None:
    writers = [bus, await connect(), await connect()]
    follower = await connect()

    async def write(name: int, writer: Bus) -> None:
        for i in range(100):
            await writer.append(job(name), b"", message_id=f"{name}-{i}")

    async def follow() -> list[LedgerRecord]:
        batches = [batch async for batch in follower.read(POOL, after_sequence=0, up_to=300)]
        return [stored for batch in batches for stored in batch]

    async with asyncio.TaskGroup() as tasks:
        followed = tasks.create_task(follow())
        for name, writer in enumerate(writers):
            tasks.create_task(write(name, writer))
    assert [stored.sequence for stored in followed.result()] == list(range(1, 301))
    for name in range(3):
        ids = [stored.message_id for stored in followed.result() if stored.subject == job(name)]
        assert ids == [f"{name}-{i}" for i in range(100)]


async def test_a_ledger_shorter_than_what_was_read_is_not_waited_for(bus: Bus) -> None:
    await bus.append(PLAN, b"", message_id="1")
    with pytest.raises(LedgerTruncated) as caught:
        await anext(bus.follow(POOL, after_sequence=5))
    assert (caught.value.read, caught.value.end) == (5, 1)


async def test_the_first_messages_of_a_ledger_are_deleted_and_all_others_keep_their_sequences(bus: Bus) -> None:
    assert (await bus.ledger_end(POOL)).first == 1
    for number in range(6):
        await bus.append(PLAN if number in (1, 4) else job(number), b"%d" % number, message_id=str(number))
    for _ in range(2):  # a repeat has no effect
        await bus.delete_ledger(POOL, up_to=4)
        end = await bus.ledger_end(POOL)
        assert (end.first, end.sequence) == (5, 6)
    assert [record.data for record in await read_all(bus, after_sequence=4)] == [b"4", b"5"]
    assert await bus.append(PLAN, b"next", message_id="next", expected_last_subject_sequence=5) == 7


async def test_a_reader_of_deleted_messages_is_told_where_the_ledger_continues(bus: Bus) -> None:
    for number in range(6):
        await bus.append(job(number), b"", message_id=str(number))
    await bus.delete_ledger(POOL, up_to=4)
    with pytest.raises(LedgerBroken) as caught:
        await next_of(bus.follow(POOL, after_sequence=1))
    assert (caught.value.expected, caught.value.found) == (2, 5)


async def test_the_newest_message_on_a_subject(bus: Bus) -> None:
    assert await bus.last_record(PLAN) is None
    for number in range(3):
        await bus.append(PLAN, b"%d" % number, message_id=str(number))
        await bus.append(job(1), b"", message_id=f"job-{number}")
    record = await bus.last_record(PLAN)
    assert record is not None
    assert (record.sequence, record.subject, record.data) == (5, PLAN, b"2")
