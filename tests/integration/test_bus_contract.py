"""What every bus keeps, whatever it is made of."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest

from shared.errors import (
    BusClosed,
    LedgerBroken,
    NoResponder,
    NotFound,
    RequestTimeout,
    TooLarge,
    UnknownStream,
    WrongExpectedSequence,
)
from shared.messages.limits import MAX_MESSAGE_BYTES
from shared.runtime import streams
from shared.runtime.bus import MAX_BATCH, Bus, Stored, WorkItem, WorkQueue
from shared.runtime.clock import SystemClock
from shared.runtime.lease import Lease

POOL = "pool-a"
PLAN = f"ef.ledger.{POOL}.plan"
SUBMIT = f"ef.submit.tenant.{POOL}"
Connect = Callable[[], Awaitable[Bus]]
T = TypeVar("T")


def job(number: int) -> str:
    return f"ef.ledger.{POOL}.job.j{number}"


async def read_all(bus: Bus, *, after_sequence: int = 0) -> list[Stored]:
    up_to = await bus.last_sequence(POOL)
    batches = [batch async for batch in bus.read(POOL, after_sequence=after_sequence, up_to=up_to)]
    return [stored for batch in batches for stored in batch]


async def next_of(messages: AsyncIterator[T]) -> T:
    async with asyncio.timeout(10):
        return await anext(messages)


# -- pools


async def test_a_pool_is_made_once_by_many_at_once(connect: Connect) -> None:
    buses = [await connect() for _ in range(3)]
    await asyncio.gather(*(bus.ensure_pool(POOL) for bus in buses))
    await buses[0].ensure_pool("pool-b")
    assert await buses[0].pools() == (POOL, "pool-b")
    assert await buses[0].pool_exists(POOL)
    assert not await buses[0].pool_exists("pool-c")
    assert not await buses[0].pool_exists("no.such pool")


async def test_a_pool_with_a_bad_name_is_refused(bus: Bus) -> None:
    with pytest.raises(ValueError, match="letters"):
        await bus.ensure_pool("a.b")


# -- the ledger


async def test_what_is_appended_is_read_back_in_order(bus: Bus) -> None:
    sequences = [await bus.append(job(i), b"%d" % i, message_id=f"id-{i}") for i in range(5)]
    stored = await read_all(bus)
    assert sequences == [1, 2, 3, 4, 5] == [message.sequence for message in stored]
    assert [message.subject for message in stored] == [job(i) for i in range(5)]
    assert [message.data for message in stored] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.message_id for message in stored] == [f"id-{i}" for i in range(5)]
    assert abs(stored[0].stored_at_s - SystemClock().now_s()) < 60
    assert await bus.last_sequence(POOL) == 5
    assert await bus.last_subject_sequence(job(2)) == 3
    assert await bus.last_subject_sequence(PLAN) == 0


async def test_any_bytes_survive(bus: Bus) -> None:
    blobs = [b"", b"\r\n", bytes(range(256)), b"x" * 1_000_000]
    for number, blob in enumerate(blobs):
        await bus.append(PLAN, blob, message_id=str(number))
    assert [message.data for message in await read_all(bus)] == blobs


async def test_only_one_of_rival_decisions_wins(connect: Connect, bus: Bus) -> None:
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
    assert {loser.found for loser in losers} <= {winners[0], None}, "told where it is, or to be asked for"
    assert await bus.last_subject_sequence(PLAN) == winners[0]


async def test_a_repeat_with_the_same_id_is_not_stored_again(bus: Bus) -> None:
    first = await bus.append(PLAN, b"x", message_id="same", expected_last_subject_sequence=0)
    assert await bus.append(PLAN, b"x", message_id="same") == first
    with pytest.raises(WrongExpectedSequence):
        await bus.append(PLAN, b"x", message_id="same", expected_last_subject_sequence=0)
    assert await bus.append_fact(PLAN, b"x", message_id="same") == first
    assert await bus.last_sequence(POOL) == 1


async def test_an_unknown_pool_takes_nothing(bus: Bus) -> None:
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


async def test_following_starts_anywhere_and_goes_on_with_what_comes(connect: Connect, bus: Bus) -> None:
    for i in range(3):
        await bus.append(job(i), b"", message_id=str(i))
    follower = await connect()
    async with aclosing(follower.follow(POOL, after_sequence=1)) as ledger:
        assert [stored.sequence for stored in await next_of(ledger)] == [2, 3]
        await bus.append(job(3), b"new", message_id="3")
        (stored,) = await next_of(ledger)
        assert (stored.sequence, stored.data) == (4, b"new")


async def test_what_has_arrived_comes_as_one_batch(bus: Bus) -> None:
    total = 2 * MAX_BATCH + 100
    await asyncio.gather(*(bus.append(job(i % 7), b"%d" % i, message_id=str(i)) for i in range(total)))
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

    async def follow() -> list[Stored]:
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
    with pytest.raises(LedgerBroken) as caught:
        await anext(bus.follow(POOL, after_sequence=5))
    assert (caught.value.expected, caught.value.found) == (6, 1)


# -- the work queue


async def pull_all(queue: WorkQueue, count: int) -> list[WorkItem]:
    items: list[WorkItem] = []
    async with asyncio.timeout(20):
        while len(items) < count:
            items += await queue.pull(count - len(items), 5.0)
    return items


async def test_work_comes_with_everything_it_was_sent_with(bus: Bus) -> None:
    queue = await bus.work(POOL, "admission")
    waiting = asyncio.create_task(queue.pull(10, 10.0))
    await bus.append(SUBMIT, b"job", message_id="id-1", headers={"Answer-To": "ef.answer"})
    (item,) = await waiting
    assert (item.subject, item.data, item.sequence, item.num_delivered) == (SUBMIT, b"job", 1, 1)
    assert item.headers["Answer-To"] == "ef.answer"
    assert item.headers["Nats-Msg-Id"] == "id-1"
    await item.ack()
    await queue.close()


async def test_a_pull_brings_all_there_is_up_to_its_limit(bus: Bus) -> None:
    for i in range(5):
        await bus.append(SUBMIT, b"%d" % i, message_id=str(i))
    queue = await bus.work(POOL, "admission")
    assert [item.data for item in await queue.pull(3, 5.0)] == [b"0", b"1", b"2"]
    assert [item.data for item in await queue.pull(3, 5.0)] == [b"3", b"4"]
    assert await queue.pull(3, 0.05) == []


async def test_replicas_share_the_work_and_each_item_goes_to_one(connect: Connect, bus: Bus) -> None:
    queues = [await (await connect()).work(POOL, "admission") for _ in range(2)]
    done: list[list[bytes]] = [[], []]
    all_done = asyncio.Event()

    async def replica(number: int) -> None:
        while True:
            for item in await queues[number].pull(4, 5.0):
                done[number].append(item.data)
                await item.ack()
            if len(done[0]) + len(done[1]) == 100:
                all_done.set()

    replicas = [asyncio.create_task(replica(number)) for number in range(2)]
    await asyncio.gather(*(bus.append(SUBMIT, b"%d" % i, message_id=str(i)) for i in range(100)))
    async with asyncio.timeout(20):
        await all_done.wait()
    for task in replicas:
        task.cancel()
    await asyncio.gather(*replicas, return_exceptions=True)
    assert sorted(done[0] + done[1]) == sorted(b"%d" % i for i in range(100))
    assert done[0]
    assert done[1]


async def test_work_handed_back_comes_again(bus: Bus) -> None:
    queue = await bus.work(POOL, "admission")
    await bus.append(SUBMIT, b"job", message_id="1")
    (item,) = await queue.pull(1, 5.0)
    await item.nak(delay_s=0.2)
    assert await queue.pull(1, 0.05) == []
    (again,) = await queue.pull(1, 10.0)
    assert (again.data, again.sequence, again.num_delivered) == (b"job", 1, 2)
    await again.nak()
    (third,) = await queue.pull(1, 10.0)
    assert third.num_delivered == 3
    await third.term()
    assert await queue.pull(1, 0.2) == []


async def test_work_of_a_replica_that_died_goes_to_another(connect: Connect, bus: Bus) -> None:
    doomed = await connect()
    queue = await doomed.work(POOL, "admission", ack_wait_s=1.0)
    await bus.append(SUBMIT, b"job", message_id="1")
    (item,) = await queue.pull(1, 5.0)
    assert item.num_delivered == 1
    await doomed.close()
    survivor = await bus.work(POOL, "admission", ack_wait_s=1.0)
    (again,) = await survivor.pull(1, 20.0)
    assert (again.data, again.num_delivered) == (b"job", 2)


async def test_work_in_progress_stays_with_its_replica(connect: Connect, bus: Bus) -> None:
    queue = await bus.work(POOL, "admission", ack_wait_s=1.0)
    await bus.append(SUBMIT, b"job", message_id="1")
    (item,) = await queue.pull(1, 5.0)
    other = await (await connect()).work(POOL, "admission", ack_wait_s=1.0)
    for _ in range(4):
        await item.in_progress()
        assert await other.pull(1, 0.4) == []
    await item.ack()
    assert await other.pull(1, 1.2) == []


# -- messages that nobody keeps


async def test_plain_messages_reach_listeners_and_one_of_each_queue(connect: Connect, bus: Bus) -> None:
    everyone = await bus.subscribe("ef.telemetry.>")
    shared = [await (await connect()).subscribe("ef.telemetry.*.n1", queue="monitors") for _ in range(2)]
    sender = await connect()
    for i in range(20):
        await sender.publish("ef.telemetry.pool-a.n1", b"%d" % i, reply="back")
    await sender.publish("ef.telemetry.pool-a.n2", b"other")
    heard = [await next_of(everyone) for _ in range(21)]
    assert [message.data for message in heard] == [b"%d" % i for i in range(20)] + [b"other"]
    assert (heard[0].subject, heard[0].reply, heard[20].reply) == ("ef.telemetry.pool-a.n1", "back", "")
    got: list[bytes] = []
    all_heard = asyncio.Event()

    async def collect(number: int) -> None:
        async for message in shared[number]:
            got.append(message.data)
            if len(got) == 20:
                all_heard.set()

    collectors = [asyncio.create_task(collect(number)) for number in range(2)]
    async with asyncio.timeout(10):
        await all_heard.wait()
    for subscription in shared:
        await subscription.close()
    await asyncio.gather(*collectors)
    assert sorted(got) == sorted(b"%d" % i for i in range(20))


async def test_a_request_is_answered(connect: Connect, bus: Bus) -> None:
    questions = await bus.subscribe("ef.quote.pool-a", queue="admission")

    async def answer() -> None:
        async for question in questions:
            await bus.publish(question.reply, b"re: " + question.data)

    answering = asyncio.create_task(answer())
    asker = await connect()
    answers = await asyncio.gather(*(asker.request("ef.quote.pool-a", b"%d" % i, 10.0) for i in range(20)))
    assert answers == [b"re: %d" % i for i in range(20)]
    await questions.close()
    await answering


async def test_a_request_that_nobody_answers_says_why(bus: Bus) -> None:
    with pytest.raises(NoResponder) as nobody:
        await bus.request("ef.quote.nobody", b"", 5.0)
    assert nobody.value.subject == "ef.quote.nobody"
    deaf = await bus.subscribe("ef.quote.deaf")
    with pytest.raises(RequestTimeout) as late:
        await bus.request("ef.quote.deaf", b"", 0.05)
    assert late.value.timeout_s == 0.05
    await deaf.close()


# -- objects and values


async def test_objects_come_back_whole(connect: Connect, bus: Bus) -> None:
    bucket = streams.code_bucket(POOL)
    big = bytes(range(256)) * (20 * 4096)  # 20 MiB
    await bus.put_object(bucket, "empty", b"")
    await bus.put_object(bucket, "code/train.py", b"old")
    await bus.put_object(bucket, "code/train.py", big)
    await bus.put_object(bucket, "code/train.py", big)
    other = await connect()
    assert await other.get_object(bucket, "empty") == b""
    assert await other.get_object(bucket, "code/train.py") == big
    with pytest.raises(NotFound):
        await other.get_object(bucket, "nothing")
    with pytest.raises(NotFound):
        await other.get_object("EF_CODE_nowhere", "nothing")


async def test_values_change_only_from_the_revision_that_was_seen(bus: Bus) -> None:
    bucket = streams.state_bucket(POOL)
    assert await bus.get_value(bucket, "profile.cnn") is None
    first = await bus.put_value(bucket, "profile.cnn", b"1", expected_revision=0)
    with pytest.raises(WrongExpectedSequence):
        await bus.put_value(bucket, "profile.cnn", b"x", expected_revision=0)
    second = await bus.put_value(bucket, "profile.cnn", b"2", expected_revision=first)
    with pytest.raises(WrongExpectedSequence):
        await bus.put_value(bucket, "profile.cnn", b"x", expected_revision=first)
    third = await bus.put_value(bucket, "profile.cnn", b"3")
    assert first < second < third
    value = await bus.get_value(bucket, "profile.cnn")
    assert value is not None
    assert (value.data, value.revision) == (b"3", third)


async def test_a_lease_has_one_holder_and_passes_on(connect: Connect, bus: Bus) -> None:
    first = Lease(bus, POOL, "allocator", "first", ttl_s=1, clock=SystemClock())
    second = Lease(await connect(), POOL, "allocator", "second", ttl_s=1, clock=SystemClock())
    assert await first.try_acquire()
    assert first.held
    assert not await second.try_acquire()
    assert not second.held
    await first.renew()
    assert first.held
    assert not await second.try_acquire()
    await first.release()
    assert not first.held
    assert await second.try_acquire()
    assert not await first.try_acquire()


async def test_a_lease_whose_holder_died_is_taken_over(connect: Connect, bus: Bus) -> None:
    doomed = await connect()
    first = Lease(doomed, POOL, "allocator", "first", ttl_s=1, clock=SystemClock())
    assert await first.try_acquire()
    await doomed.close()
    second = Lease(bus, POOL, "allocator", "second", ttl_s=1, clock=SystemClock())
    told: asyncio.Queue[bool] = asyncio.Queue()
    holding = asyncio.create_task(second.hold(told.put_nowait))
    async with asyncio.timeout(20):
        assert await told.get()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert not await told.get()
    third = Lease(bus, POOL, "allocator", "third", ttl_s=1, clock=SystemClock())
    assert await third.try_acquire(), "released by the one that was cancelled"


# -- the end


async def test_a_closed_bus_lets_everybody_go(connect: Connect, bus: Bus) -> None:
    doomed = await connect()
    queue = await doomed.work(POOL, "admission")
    subscription = await doomed.subscribe("ef.telemetry.>")
    following = asyncio.create_task(anext(doomed.follow(POOL, after_sequence=0)))
    pulling = asyncio.create_task(queue.pull(1, 60.0))
    listening = asyncio.create_task(anext(subscription))
    await bus.publish("ef.telemetry.warm", b"")
    async with asyncio.timeout(10):
        await listening
        listening = asyncio.create_task(anext(subscription))
        await doomed.close()
        results = await asyncio.gather(following, pulling, listening, return_exceptions=True)
    assert [type(result) for result in results[:2]] == [BusClosed, BusClosed]
    assert isinstance(results[2], StopAsyncIteration)
    with pytest.raises(BusClosed):
        await doomed.append(PLAN, b"", message_id="1")
    await doomed.close()


async def test_whoever_has_subscribed_gets_what_another_publishes_next(connect: Connect, bus: Bus) -> None:
    """An answer, say, that comes at once. It is a race: each round is another chance to lose it."""
    async with asyncio.timeout(60):
        for number in range(150):
            listener = await connect()
            subscription = await listener.subscribe("ef.telemetry.>")
            await bus.publish("ef.telemetry.next", b"%d" % number)
            assert (await anext(subscription)).data == b"%d" % number
            await listener.close()


@pytest.mark.parametrize("num_turns", range(1, 8))
async def test_who_is_cancelled_while_subscribing_hears_it(bus: Bus, num_turns: int) -> None:
    """Otherwise a service that is told to stop just after its start would go on for ever."""
    subscribing = asyncio.ensure_future(bus.subscribe("ef.telemetry.>"))
    for _ in range(num_turns):  # of the event loop
        await asyncio.sleep(0)
    if subscribing.cancel():
        with pytest.raises(asyncio.CancelledError):
            await subscribing
