"""The contract of every bus: one replica handles each command of the work queue."""

import asyncio

import pytest

from elasticflow.shared.errors import StorageFull, TooLarge
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus.contract import Bus, WorkItem, WorkQueue
from elasticflow.shared.runtime.bus.streams import MAX_COMMAND_BYTES, StreamLimits
from tests.support.shared_pool import POOL, SUBMIT, Connect


async def pull_all(queue: WorkQueue, count: int) -> list[WorkItem]:
    items: list[WorkItem] = []
    async with asyncio.timeout(60):
        while len(items) < count:
            items += await queue.pull(count - len(items), 5.0)
    return items


async def test_a_command_arrives_with_all_its_headers(bus: Bus) -> None:
    queue = await bus.work(POOL, "admission")
    waiting = asyncio.create_task(queue.pull(10, 10.0))
    await bus.append(SUBMIT, b"job", message_id="id-1", headers={"Answer-To": "ef.answer"})
    (item,) = await waiting
    assert (item.subject, item.data, item.sequence, item.num_delivered) == (SUBMIT, b"job", 1, 1)
    assert item.headers["Answer-To"] == "ef.answer"
    assert item.headers["Nats-Msg-Id"] == "id-1"
    await item.ack()
    await queue.close()


async def test_a_pull_returns_all_messages_up_to_its_limit(bus: Bus) -> None:
    for i in range(5):
        await bus.append(SUBMIT, b"%d" % i, message_id=str(i))
    queue = await bus.work(POOL, "admission")
    assert [item.data for item in await queue.pull(3, 5.0)] == [b"0", b"1", b"2"]
    assert [item.data for item in await queue.pull(3, 5.0)] == [b"3", b"4"]
    assert await queue.pull(3, 0.05) == []


async def test_replicas_share_the_work_and_each_item_goes_to_one(connect: Connect, bus: Bus) -> None:
    queues = [await (await connect()).work(POOL, "admission") for _ in range(2)]
    done: list[list[bytes]] = [[], []]
    both_have_some, all_done = asyncio.Barrier(2), asyncio.Event()

    async def replica(number: int) -> None:
        while True:
            items = await queues[number].pull(4, 5.0)
            if items and not done[number]:
                await both_have_some.wait()  # a fast replica leaves some to the other
            for item in items:
                done[number].append(item.data)
                await item.ack()
            if len(done[0]) + len(done[1]) == 100:
                all_done.set()

    replicas = [asyncio.create_task(replica(number)) for number in range(2)]
    await asyncio.gather(*(bus.append(SUBMIT, b"%d" % i, message_id=str(i)) for i in range(100)))
    async with asyncio.timeout(60):
        await all_done.wait()
    for task in replicas:
        task.cancel()
    await asyncio.gather(*replicas, return_exceptions=True)
    assert sorted(done[0] + done[1]) == sorted(b"%d" % i for i in range(100))


async def test_rejected_work_is_delivered_again(bus: Bus) -> None:
    queue = await bus.work(POOL, "admission")
    await bus.append(SUBMIT, b"much later", message_id="1")
    await bus.append(SUBMIT, b"job", message_id="2")
    later, item = await pull_all(queue, 2)
    await later.nak(delay_s=600.0)
    await item.nak(delay_s=0.2)
    (again,) = await queue.pull(1, 60.0)
    assert (again.data, again.sequence, again.num_delivered) == (b"job", 2, 2)
    assert again.stored_at_s == item.stored_at_s > 0
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
    """Each time for long after, compared with the pauses that a busy machine makes."""
    queue = await bus.work(POOL, "admission", ack_wait_s=3.0)
    await bus.append(SUBMIT, b"job", message_id="1")
    (item,) = await queue.pull(1, 5.0)
    other = await (await connect()).work(POOL, "admission", ack_wait_s=3.0)
    for _ in range(4):
        await item.in_progress()
        assert await other.pull(1, 1.0) == []
    await item.ack()
    assert await other.pull(1, 3.2) == []


async def test_the_queue_takes_no_message_above_the_largest_command(bus: Bus) -> None:
    """A replica holds hundreds of them."""
    largest = bytes(MAX_SUBMISSION_BYTES)
    await bus.append(SUBMIT, largest, message_id="1", headers={"Ef-Answer-To": "_INBOX." + "x" * 200})
    with pytest.raises(TooLarge) as caught:
        await bus.append(SUBMIT, bytes(MAX_COMMAND_BYTES + 1), message_id="2")
    assert caught.value.limit_bytes == MAX_COMMAND_BYTES
    (item,) = await (await bus.work(POOL, "admission")).pull(2, 5.0)
    assert len(item.data) == len(largest)


async def test_a_tenant_with_too_many_commands_is_refused_and_others_are_not(connect: Connect) -> None:
    bus = await connect(StreamLimits(submit_commands_per_tenant=2))
    await bus.ensure_pool(POOL)
    flood, other = subjects.submit("flood", POOL), subjects.submit("other", POOL)
    sequences = [await bus.append(flood, b"command", message_id=str(number)) for number in range(2)]
    with pytest.raises(StorageFull) as full:
        await bus.append(flood, b"command", message_id="2")
    assert "tenant flood has as many undecided commands in pool" in str(full.value)
    assert f"raise max_msgs_per_subject of stream EF_SUBMIT_{POOL}" in str(full.value)
    assert await bus.append(flood, b"command", message_id="1") == sequences[-1], "a repeat is no further command"
    await bus.append(other, b"command", message_id="3")
    (first, *_) = await (await bus.work(POOL, "admission")).pull(1, 5.0)
    await first.ack()
    await bus.append_event(flood, b"command", message_id="2")
