"""The contract of every bus: objects, values and leases."""

import asyncio

import pytest

from elasticflow.shared.errors import DamagedObject, NotFound, WrongExpectedSequence
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import REVISION_HEADER, Bus
from elasticflow.shared.runtime.service.leader_lease import Lease
from tests.support.service_contexts import service_context
from tests.support.shared_pool import POOL, Connect

MAX = 20 << 20


async def test_objects_are_read_back_complete(connect: Connect, bus: Bus) -> None:
    bucket = streams.code_bucket(POOL)
    big = bytes(range(256)) * (20 * 4096)  # 20 MiB
    await bus.put_object(bucket, "empty", b"")
    await bus.put_object(bucket, "code/train.py", b"old")
    await bus.put_object(bucket, "code/train.py", big)
    await bus.put_object(bucket, "code/train.py", big)
    other = await connect()
    assert await other.get_object(bucket, "empty", max_bytes=MAX) == b""
    assert await other.get_object(bucket, "code/train.py", max_bytes=MAX) == big
    with pytest.raises(NotFound):
        await other.get_object(bucket, "nothing", max_bytes=MAX)
    with pytest.raises(NotFound):
        await other.get_object("EF_CODE_nowhere", "nothing", max_bytes=MAX)
    with pytest.raises(DamagedObject, match="more than"):
        await other.get_object(bucket, "code/train.py", max_bytes=MAX - 1)


async def test_old_objects_that_are_not_needed_are_deleted(bus: Bus) -> None:
    bucket = streams.code_bucket(POOL)
    for name in ("lab/needed", "lab/old", "alone"):
        await bus.put_object(bucket, name, name.encode())
    now_s = (await bus.ledger_end(POOL)).at_s
    assert await bus.delete_old_objects(bucket, before_s=now_s - 60.0, is_needed=lambda name: False) == 0
    is_needed = "lab/needed".__eq__
    assert await bus.delete_old_objects(bucket, before_s=now_s + 60.0, is_needed=is_needed) == 2
    assert await bus.delete_old_objects(bucket, before_s=now_s + 60.0, is_needed=is_needed) == 0
    assert await bus.get_object(bucket, "lab/needed", max_bytes=MAX) == b"lab/needed"
    for name in ("lab/old", "alone"):
        with pytest.raises(NotFound):
            await bus.get_object(bucket, name, max_bytes=MAX)
        await bus.put_object(bucket, name, b"again")
        assert await bus.get_object(bucket, name, max_bytes=MAX) == b"again"


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


async def test_a_stored_record_of_a_node_is_published_with_its_revision(connect: Connect, bus: Bus) -> None:
    bucket = streams.node_bucket(POOL)
    records = await (await connect()).subscribe(subjects.every_node(POOL))
    first = await bus.put_value(bucket, "node-0", b"1", expected_revision=0)
    with pytest.raises(WrongExpectedSequence):
        await bus.put_value(bucket, "node-0", b"rejected", expected_revision=0)
    other = await bus.put_value(bucket, "node-1", b"2", expected_revision=0)
    second = await bus.put_value(bucket, "node-0", b"3", expected_revision=first)
    for node_id, data, revision in (("node-0", b"1", first), ("node-1", b"2", other), ("node-0", b"3", second)):
        message = await anext(records)
        assert (message.subject, message.data) == (subjects.telemetry(POOL, node_id), data)
        assert message.headers[REVISION_HEADER] == str(revision)
    await records.close()


async def test_a_lease_has_one_holder_at_a_time(connect: Connect, bus: Bus) -> None:
    first = Lease(service_context(bus, POOL, instance="first"), "allocator", ttl_s=lambda: 60)
    second = Lease(service_context(await connect(), POOL, instance="second"), "allocator", ttl_s=lambda: 60)
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
    first = Lease(service_context(doomed, POOL, instance="first"), "allocator", ttl_s=lambda: 1)
    assert await first.try_acquire()
    await doomed.close()
    second = Lease(service_context(bus, POOL, instance="second"), "allocator", ttl_s=lambda: 1)
    holds: asyncio.Queue[bool] = asyncio.Queue()
    holding = asyncio.create_task(second.hold(holds.put_nowait))
    async with asyncio.timeout(60):
        assert await holds.get()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert not await holds.get()
    third = Lease(service_context(bus, POOL, instance="third"), "allocator", ttl_s=lambda: 1)
    assert await third.try_acquire(), "the cancelled holder releases it"


async def test_a_lease_that_was_stored_without_an_end_expires(bus: Bus) -> None:
    """For example by hand. Its holder, if there is one, has lost it too."""
    await bus.put_value(streams.state_bucket(POOL), "lease.allocator", b"unknown")
    lease = Lease(service_context(bus, POOL, instance="first"), "allocator", ttl_s=lambda: 1)
    assert not await lease.try_acquire()
    holds: asyncio.Queue[bool] = asyncio.Queue()
    holding = asyncio.create_task(lease.hold(holds.put_nowait))
    async with asyncio.timeout(60):
        assert await holds.get()
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
