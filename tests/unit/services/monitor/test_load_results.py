"""The monitor counts results that are stored, on top of what the ledger counts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.monitor import load_results
from elasticflow.services.monitor.load_results import KEEP_RESULTS_S, LoadResults
from elasticflow.services.monitor.model import ResultsCounted
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.load_lease import release_load_lease, renew_load_lease
from elasticflow.shared.state.load import Load, LoadPhase
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from tests.support.shared_pool import add_result

POOL = "p"
LOAD = Load(
    load_id="a",
    identity="1f",
    tenant="lab",
    spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0),
    phase=LoadPhase.OPEN,
    useful_share=None,
    opened_at_s=0.0,
)


class Monitor:
    """A new monitor whose ledger the test writes. notes: what its host is told."""

    def __init__(self, bus: MemoryBus) -> None:
        self.now_s = 0.0
        self.notes = asyncio.Queue[ResultsCounted]()
        self.folded = SimpleNamespace(loads=dict[str, Load]())
        host: Any = SimpleNamespace(folded=self.folded, ready=asyncio.Event(), note=self.notes.put_nowait)
        host.ready.set()
        process: Any = SimpleNamespace(
            bus=bus, settings=SimpleNamespace(pool=POOL), clock=SimpleNamespace(now_s=lambda: self.now_s), log=None
        )
        self.results = LoadResults(process, host)

    async def note(self) -> ResultsCounted:
        async with asyncio.timeout(60):
            return await self.notes.get()


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    return bus


@asynccontextmanager
async def following(monitor: Monitor) -> AsyncIterator[None]:
    running = asyncio.create_task(monitor.results.run())
    yield
    running.cancel()
    await asyncio.wait({running})


async def test_results_that_another_monitor_counted_before_they_were_deleted_count(
    bus: MemoryBus,
) -> None:
    monitor = Monitor(bus)
    async with following(monitor):
        await add_result(bus, "a", 5, pool=POOL)
        note = await monitor.note()
        assert (note.num_results, note.counted) == (1, ((5, 5),)), "its ledger does not have the load yet"
        monitor.folded.loads["a"] = replace(LOAD, counted=((0, 4),), counted_to=0)
        last = await add_result(bus, "a", 6, pool=POOL)
        note = await monitor.note()
    assert (note.num_results, note.counted, note.counted_to) == (7, ((0, 6),), last)


async def test_results_of_a_finished_load_stay_while_its_client_reads(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_results, "DELETE_EVERY_S", 0.01)
    for load_id in ("read", "unread"):
        await add_result(bus, load_id, 0, pool=POOL)
    await renew_load_lease(bus, POOL, "read", "client")
    monitor = Monitor(bus)
    finished = replace(LOAD, phase=LoadPhase.FINISHED, num_tasks=1, num_results=1)
    monitor.folded.loads |= {load_id: replace(finished, load_id=load_id) for load_id in ("read", "unread")}
    async with following(monitor):
        await monitor.note()
        monitor.now_s = KEEP_RESULTS_S + 1.0
        await until_stored(bus, "read")
        await release_load_lease(bus, POOL, "read")
        await until_stored(bus)


async def test_results_of_an_earlier_load_of_the_id_do_not_count_and_are_deleted_alone(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_results, "DELETE_EVERY_S", 0.01)
    earlier = replace(LOAD, by_identity=True, phase=LoadPhase.FINISHED, num_tasks=1, num_results=1)
    later = replace(LOAD, by_identity=True, identity="2e", tenant="other")
    await add_result(bus, earlier.bus_name, 0, pool=POOL)
    monitor = Monitor(bus)
    monitor.folded.loads["a"] = earlier
    async with following(monitor):
        assert (await monitor.note()).num_results == 1
        monitor.folded.loads["a"] = later
        await add_result(bus, earlier.bus_name, 1, pool=POOL)
        own = await add_result(bus, later.bus_name, 5, pool=POOL)
        note = await monitor.note()
        assert (note.load_id, note.counted, note.counted_to) == ("a", ((5, 5),), own)
        monitor.now_s = KEEP_RESULTS_S + 1.0
        await until_stored(bus, later.bus_name)


async def until_stored(bus: MemoryBus, *load_ids: str) -> None:
    """Until results of these loads alone are stored."""
    async with asyncio.timeout(60):
        while loads_with_results(bus) != {*load_ids}:  # noqa: ASYNC110 - nothing reports a deletion
            await asyncio.sleep(0.01)


def loads_with_results(bus: MemoryBus) -> set[str]:
    stored = bus.broker.stream(streams.result_stream(POOL)).messages.values()
    return {tasks[0] for message in stored if (tasks := subjects.tasks_of_results(message.subject)) is not None}
