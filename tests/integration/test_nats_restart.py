"""A server that is killed and restarted repeatedly loses no acknowledged message and keeps the order."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

from elasticflow.shared.errors import LedgerTruncated, MaybeStored, Unavailable, WrongExpectedSequence
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.nats import stream_follower
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.nats.jetstream_api import leader_info
from testbed.real_pool import persistently
from tests.support.shared_pool import add_result, stored_results

POOL = "p"
PLAN = f"ef.ledger.{POOL}.plan"
REPORTED_EVENTS = f"ef.ledger.{POOL}.job.j1"
SUBMIT = f"ef.submit.t.{POOL}"
KILLS = 3
BETWEEN_KILLS = 60  # messages


async def write_facts(bus: NatsBus, written: dict[str, int], killed: asyncio.Event, enough: asyncio.Event) -> None:
    """Append messages until the last kill, then a few more."""
    while not (killed.is_set() and enough.is_set()):
        message_id = f"event-{len(written)}"
        written[message_id] = await bus.append_event(REPORTED_EVENTS, b"", message_id=message_id)
        await bus.append_event(SUBMIT, message_id.encode(), message_id=message_id)
        enough.set() if len(written) % BETWEEN_KILLS == 0 else None


async def decide(bus: NatsBus, decided: list[int], killed: asyncio.Event) -> None:
    """The loop of a decider: append by compare-and-set; after a lost acknowledgement, look for the message."""
    last = 0
    while not killed.is_set():
        try:
            last = await bus.append(
                PLAN, b"", message_id=f"plan-after-{last}", expected_last_subject_sequence=last, timeout_s=2.0
            )
            decided.append(last)
        except (MaybeStored, Unavailable, WrongExpectedSequence):
            last = await look(bus, PLAN)


async def look(bus: NatsBus, subject: str) -> int:
    while True:
        try:
            return await bus.last_subject_sequence(subject)
        except Unavailable:
            await asyncio.sleep(0.02)


async def follow(bus: NatsBus, seen: list[LedgerRecord]) -> None:
    async with aclosing(bus.follow(POOL, after_sequence=0)) as ledger:
        async for batch in ledger:
            seen.extend(batch)


async def work(bus: NatsBus, done: set[bytes]) -> None:
    queue = await bus.work(POOL, "admission", ack_wait_s=1.0)
    while True:
        for item in await queue.pull(16, 5.0):
            done.add(item.data)
            await item.ack()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(90):
        while not holds():  # noqa: ASYNC110 - several tasks change the state, without a common event
            await asyncio.sleep(0.005)


async def test_nothing_acknowledged_is_lost_over_kills_of_the_server(nats_server: EmbeddedServer) -> None:
    bus = await connect_nats(nats_server.url, name="writer")
    reader = await connect_nats(nats_server.url, name="reader")
    await bus.ensure_pool(POOL)
    written: dict[str, int] = {}
    decided: list[int] = []
    seen: list[LedgerRecord] = []
    done: set[bytes] = set()
    killed, enough = asyncio.Event(), asyncio.Event()
    background = [asyncio.create_task(coroutine) for coroutine in (follow(reader, seen), work(reader, done))]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_facts(bus, written, killed, enough))
        tasks.create_task(decide(bus, decided, killed))
        for kill in range(KILLS):
            await until(lambda goal=(kill + 1) * BETWEEN_KILLS: len(written) >= goal)
            nats_server.kill()
            await until(lambda: not bus.is_connected and not reader.is_connected)
            nats_server.start()
        killed.set()
    last = await bus.last_sequence(POOL)
    await until(lambda: len(seen) >= last and len(done) >= len(written))
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)

    assert [stored.sequence for stored in seen] == list(range(1, last + 1))
    stored_ids = {stored.sequence: stored.message_id for stored in seen}
    assert all(stored_ids[sequence] == message_id for message_id, sequence in written.items())
    plans = [stored.sequence for stored in seen if stored.subject == PLAN]
    assert set(decided) <= set(plans)
    assert len({stored_ids[sequence] for sequence in plans}) == len(plans), "no decision was taken twice"
    assert done == {message_id.encode() for message_id in written}
    await bus.close()
    await reader.close()


async def test_a_load_is_complete_over_kills_of_the_server(nats_server: EmbeddedServer) -> None:
    """Two executors work, a client reads the results of one load among those of another."""
    buses = [await connect_nats(nats_server.url, name=name) for name in ("client", "executor-1", "executor-2")]
    client = buses[0]
    await client.ensure_pool(POOL)
    total = KILLS * BETWEEN_KILLS
    for index in range(total):
        await client.append(subjects.tasks(POOL, "load"), b"%d" % index, message_id=f"bundle-{index}")
    seen: list[LedgerRecord] = []
    enough = asyncio.Event()
    background = [asyncio.create_task(execute(bus, enough)) for bus in buses[1:]]
    background.append(asyncio.create_task(read_results(client, seen)))
    for kill in range(KILLS):
        await until(lambda goal=kill * BETWEEN_KILLS + 10: len(seen) >= goal)
        nats_server.kill()
        await until(lambda: not any(bus.is_connected for bus in buses))
        nats_server.start()
        await until(lambda: all(bus.is_connected for bus in buses))
    enough.set()
    await until(lambda: len(seen) >= total)
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    sequences = [stored.sequence for stored in seen]
    assert sequences == sorted(set(sequences))
    assert {stored.data for stored in seen} == {b"%d" % index for index in range(total)}
    assert len(seen) == len(await stored_results(client, "load", pool=POOL)) == total
    for bus in buses:
        await bus.close()


async def execute(bus: NatsBus, enough: asyncio.Event) -> None:
    """Slowly until the last kill, so that each kill interrupts the load."""
    queue = await bus.tasks(POOL, "load", ack_wait_s=1.0)
    while True:
        for item in await queue.pull(4, 5.0):
            for load_id in ("other", "load"):
                await persistently(partial(add_result, bus, load_id, int(item.data), pool=POOL))
            await item.ack()
            await asyncio.sleep(0 if enough.is_set() else 0.005)


async def read_results(bus: NatsBus, seen: list[LedgerRecord]) -> None:
    async with aclosing(bus.results(POOL, "load")) as results:
        async for batch in results:
            seen.extend(batch)


async def test_a_stopped_server_is_unavailable_at_once_and_no_message_is_sent_later(
    nats_server: EmbeddedServer,
) -> None:
    states: list[str] = []
    bus = await connect_nats(nats_server.url, name="test", on_state=states.append)
    await bus.ensure_pool(POOL)
    pending = asyncio.create_task(bus.request("ef.unknown", b"", 60.0))
    listener = await bus.subscribe("ef.deaf")
    waiting = asyncio.create_task(bus.request("ef.deaf", b"", 60.0))
    await anext(listener)
    nats_server.kill()
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await waiting
    await asyncio.gather(pending, return_exceptions=True)
    with pytest.raises(Unavailable):
        await bus.append(REPORTED_EVENTS, b"", message_id="1")
    with pytest.raises(Unavailable):
        await bus.publish("ef.deaf", b"")
    nats_server.start()
    await until(lambda: bus.is_connected)
    assert await bus.last_sequence(POOL) == 0
    await bus.publish("ef.deaf", b"heard again")
    async with asyncio.timeout(60):
        assert (await anext(listener)).data == b"heard again"
    await bus.close()
    assert states == ["connected", "disconnected", "reconnected", "closed"]


async def test_a_deleted_consumer_is_created_again(nats_server: EmbeddedServer) -> None:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    queue = await bus.work(POOL, "admission")
    pulling = asyncio.create_task(queue.pull(1, 20.0))
    admin = bus._connection  # as an operator with the nats tool
    await until_consumer_waits(bus)
    await admin.api("CONSUMER.DELETE.EF_SUBMIT_p.admission")
    await bus.append(SUBMIT, b"job", message_id="1")
    (item,) = await pulling
    assert item.data == b"job"
    await admin.api("CONSUMER.DELETE.EF_SUBMIT_p.admission")
    (again,) = await queue.pull(1, 20.0)
    assert again.data == b"job"
    await bus.close()


async def until_consumer_waits(bus: NatsBus) -> None:
    async with asyncio.timeout(60):
        while not (await bus._connection.api("CONSUMER.INFO.EF_SUBMIT_p.admission"))["num_waiting"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_consumer_that_the_server_forgot_is_replaced(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticflow.shared.runtime.bus.nats.stream_follower._SILENCE_S", 0.3)
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    async with aclosing(bus.follow(POOL, after_sequence=0)) as ledger:
        await bus.append(REPORTED_EVENTS, b"", message_id="1")
        assert [stored.sequence for stored in await anext(ledger)] == [1]
        (name,) = (await bus._connection.api("CONSUMER.NAMES.EF_LEDGER_p"))["consumers"]
        await bus._connection.api(f"CONSUMER.DELETE.EF_LEDGER_p.{name}")
        await bus.append(REPORTED_EVENTS, b"", message_id="2")
        async with asyncio.timeout(60):
            assert [stored.sequence for stored in await anext(ledger)] == [2]
    await bus.close()


async def test_a_reader_goes_on_once_the_servers_have_what_it_has_read(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lags behind answers first, and a consumer on it would begin with messages that were read."""
    lagging = {"leader": "a", "replicas": [{"current": True, "active": 0}]}
    answers = [{"state": {"last_seq": 1}, "cluster": lagging}] * 3
    asked, create = leader_info, stream_follower._create_consumer

    async def answered(connection: Connection, stream: str) -> dict[str, Any]:
        return answers.pop() if answers else await asked(connection, stream)

    async def created(connection: Connection, source: Any, subject: str, first: int) -> None:
        await create(connection, source, subject, first - 1)

    monkeypatch.setattr("elasticflow.shared.runtime.bus.nats.stream_follower.leader_info", answered)
    monkeypatch.setattr(stream_follower, "_create_consumer", created)
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    for number in range(1, 4):
        await bus.append(REPORTED_EVENTS, b"", message_id=str(number))
    async with asyncio.timeout(60), aclosing(bus.follow(POOL, after_sequence=2)) as ledger:
        assert [stored.sequence for stored in await anext(ledger)] == [3]
    assert not answers
    await bus.close()


async def test_no_message_follows_on_one_that_was_replaced(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server lost what was read, and its ledger has grown again."""
    monkeypatch.setattr("elasticflow.shared.runtime.bus.nats.stream_follower._SILENCE_S", 0.3)
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    async with asyncio.timeout(60), aclosing(bus.follow(POOL, after_sequence=0)) as ledger:
        await bus.append(REPORTED_EVENTS, b"first", message_id="1")
        assert [stored.sequence for stored in await anext(ledger)] == [1]
        config = (await bus._connection.api("STREAM.INFO.EF_LEDGER_p"))["config"]
        await bus._connection.api("STREAM.DELETE.EF_LEDGER_p")
        await bus._connection.api("STREAM.CREATE.EF_LEDGER_p", config)
        for number in range(1, 4):
            await bus.append(REPORTED_EVENTS, b"other", message_id=f"other-{number}")
        with pytest.raises(LedgerTruncated):
            await anext(ledger)
    await bus.close()


async def test_a_loss_during_a_reconnection_is_detected(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nats-py ignores the end of a connection while it reconnects: its reader ends, and it counts as connected.

    Only a ping without a reply detects that.
    """
    monkeypatch.setattr("elasticflow.shared.runtime.bus.nats.client._PING_INTERVAL_S", 0.2)
    states: list[str] = []
    bus = await connect_nats(nats_server.url, name="test", on_state=states.append)
    await bus.ensure_pool(POOL)
    client = bus._connection.client
    client._status = client.RECONNECTING  # the connection ends at this moment
    nats_server.kill()
    await until(lambda: client._reading_task is None or client._reading_task.done())
    client._status = client.CONNECTED  # and nats-py counts as connected
    assert bus.is_connected
    assert states == ["connected"]
    nats_server.start()
    await until(lambda: "reconnected" in states)
    assert await bus.append(REPORTED_EVENTS, b"", message_id="1") == 1
    await bus.close()
