"""The monitor's snapshots: stored, named in the ledger, replaced; and a reader that comes in between."""

from typing import Any

import pytest

from elasticflow.shared.errors import Unavailable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.snapshot_store import Snapshot
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.histories import NOW_S
from tests.support.one_pool import RecordingLog

POOL = "p"


def snapshot(sequence: int) -> Snapshot:
    return Snapshot(state=PoolState(sequence=sequence), chain="00" * 16)


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    return bus


async def loaded(bus: MemoryBus) -> Snapshot | None:
    return await snapshot_store.load(bus, POOL, RecordingLog())


def objects(bus: MemoryBus) -> dict[str, bytes]:
    return bus.broker.objects[streams.snapshot_bucket(POOL)]


async def test_the_newest_snapshot_replaces_the_one_before(bus: MemoryBus) -> None:
    assert await loaded(bus) is None
    for sequence in (1, 2, 2):
        await snapshot_store.save(bus, POOL, snapshot(sequence), NOW_S)
        assert await loaded(bus) == snapshot(sequence)
        assert len(objects(bus)) == 1


@pytest.mark.parametrize("failing", ["put_object", "append", "delete_old_objects"])
async def test_a_monitor_that_ends_while_it_saves_leaves_a_snapshot(
    failing: str, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await snapshot_store.save(bus, POOL, snapshot(1), NOW_S)

    async def fail(*arguments: Any, **options: Any) -> None:
        raise Unavailable("nats://pool", "the monitor ends")

    with monkeypatch.context() as patch:
        patch.setattr(bus, failing, fail)
        with pytest.raises(Unavailable):
            await snapshot_store.save(bus, POOL, snapshot(2), NOW_S)
    assert await loaded(bus) == snapshot(2 if failing == "delete_old_objects" else 1)


async def test_a_reader_takes_the_snapshot_that_replaced_the_one_it_was_told_of(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    await snapshot_store.save(bus, POOL, snapshot(1), NOW_S)
    get_object, waiting = bus.get_object, [2]

    async def get_late(bucket: str, name: str, *, max_bytes: int) -> bytes:
        while waiting:
            await snapshot_store.save(bus, POOL, snapshot(waiting.pop()), NOW_S)
        return await get_object(bucket, name, max_bytes=max_bytes)

    monkeypatch.setattr(bus, "get_object", get_late)
    assert await loaded(bus) == snapshot(2)


async def test_a_snapshot_that_the_ledger_does_not_name_is_not_read(bus: MemoryBus) -> None:
    await bus.put_object(streams.snapshot_bucket(POOL), "saved-" + "0" * 64, snapshot_store.encode(snapshot(1)))
    assert await loaded(bus) is None


async def test_a_snapshot_that_was_replaced_under_its_name_is_not_read(bus: MemoryBus) -> None:
    await snapshot_store.save(bus, POOL, snapshot(1), NOW_S)
    (name,) = objects(bus)
    await bus.put_object(streams.snapshot_bucket(POOL), name, snapshot_store.encode(snapshot(7)))
    assert await loaded(bus) is None
