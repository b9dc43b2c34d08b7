"""The contract of every bus: plain messages, requests, and the end of a connection."""

import asyncio

import pytest

from elasticflow.shared.errors import BusClosed, NoResponder, RequestTimeout
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from tests.support.shared_pool import PLAN, POOL, Connect, next_of


async def test_plain_messages_reach_listeners_and_one_of_each_queue(connect: Connect, bus: Bus) -> None:
    everyone = await bus.subscribe("ef.telemetry.>")
    shared = [await (await connect()).subscribe("ef.telemetry.*.n1", queue="monitors") for _ in range(2)]
    sender = await connect()
    for i in range(20):
        await sender.publish("ef.telemetry.pool-a.n1", b"%d" % i, reply="back")
    await sender.publish("ef.telemetry.pool-a.n2", b"other")
    received = [await next_of(everyone) for _ in range(21)]
    assert [message.data for message in received] == [b"%d" % i for i in range(20)] + [b"other"]
    assert (received[0].subject, received[0].reply, received[20].reply) == ("ef.telemetry.pool-a.n1", "back", "")
    got: list[bytes] = []
    all_heard = asyncio.Event()

    async def collect(number: int) -> None:
        async for message in shared[number]:
            got.append(message.data)
            if len(got) == 20:
                all_heard.set()

    collectors = [asyncio.create_task(collect(number)) for number in range(2)]
    async with asyncio.timeout(60):
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


async def test_a_request_without_a_reply_names_the_reason(bus: Bus) -> None:
    with pytest.raises(NoResponder) as failed:
        await bus.request("ef.quote.unknown", b"", 5.0)
    assert failed.value.subject == "ef.quote.unknown"
    deaf = await bus.subscribe("ef.quote.deaf")
    with pytest.raises(RequestTimeout) as late:
        await bus.request("ef.quote.deaf", b"", 0.05)
    assert late.value.timeout_s == 0.05
    await deaf.close()


async def test_a_subscriber_gets_the_next_message_of_another_client(connect: Connect, bus: Bus) -> None:
    """For example an immediate reply. Each round repeats the race between both clients."""
    async with asyncio.timeout(60):
        for number in range(150):
            listener = await connect()
            subscription = await listener.subscribe("ef.telemetry.>")
            await bus.publish("ef.telemetry.next", b"%d" % number)
            assert (await anext(subscription)).data == b"%d" % number
            await listener.close()


@pytest.mark.parametrize("num_turns", range(1, 8))
async def test_cancelling_a_subscribing_task_ends_it(bus: Bus, num_turns: int) -> None:
    """Otherwise a service that is stopped during its start would run forever."""
    subscribing = asyncio.ensure_future(bus.subscribe("ef.telemetry.>"))
    for _ in range(num_turns):  # of the event loop
        await asyncio.sleep(0)
    if subscribing.cancel():
        with pytest.raises(asyncio.CancelledError):
            await subscribing


@pytest.mark.parametrize("num_turns", range(1, 8))
async def test_cancelling_a_closing_task_ends_it_and_the_bus_is_closed(connect: Connect, num_turns: int) -> None:
    """Otherwise Ctrl-C while a pool is configured would be lost, and the pool would run forever."""
    doomed = await connect()
    await doomed.subscribe("ef.telemetry.>")
    closing = asyncio.ensure_future(doomed.close())
    for _ in range(num_turns):
        await asyncio.sleep(0)
    if closing.cancel():
        with pytest.raises(asyncio.CancelledError):
            await closing
    with pytest.raises(BusClosed):
        await doomed.append(PLAN, b"", message_id="1")


@pytest.mark.parametrize("num_turns", range(6))
async def test_cancelling_a_connecting_task_ends_it(nats_server: EmbeddedServer, num_turns: int) -> None:
    connection = Connection(nats_server.url, None)
    opening = asyncio.ensure_future(connection.open(nats_server.url, name="test", wait_s=60.0, access=NatsAccess()))
    while not connection.is_connected:  # noqa: ASYNC110 - each turn of the event loop counts
        await asyncio.sleep(0)
    for _ in range(num_turns):
        await asyncio.sleep(0)
    was_cancelled = opening.cancel()
    try:
        await opening
    except asyncio.CancelledError:
        assert connection.client.is_closed
    else:
        assert not was_cancelled
        await connection.close()


async def test_a_closed_bus_ends_all_waits(connect: Connect, bus: Bus) -> None:
    doomed = await connect()
    queue = await doomed.work(POOL, "admission")
    subscription = await doomed.subscribe("ef.telemetry.>")
    following = asyncio.create_task(anext(doomed.follow(POOL, after_sequence=0)))
    pulling = asyncio.create_task(queue.pull(1, 60.0))
    listening = asyncio.create_task(anext(subscription))
    await bus.publish("ef.telemetry.warm", b"")
    async with asyncio.timeout(60):
        await listening
        listening = asyncio.create_task(anext(subscription))
        await doomed.close()
        results = await asyncio.gather(following, pulling, listening, return_exceptions=True)
    assert [type(result) for result in results[:2]] == [BusClosed, BusClosed]
    assert isinstance(results[2], StopAsyncIteration)
    with pytest.raises(BusClosed):
        await doomed.append(PLAN, b"", message_id="1")
    await doomed.close()
