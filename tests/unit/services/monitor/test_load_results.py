"""The monitor counts results that are stored, on top of what the ledger counts."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.monitor.load_results import LoadResults
from elasticflow.services.monitor.model import ResultsCounted
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus.memory.bus import MemoryBus
from elasticflow.shared.state.load import Load, LoadPhase
from tests.support.shared_pool import add_result

POOL = "p"
LOAD = Load(
    load_id="a",
    tenant="lab",
    spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0),
    phase=LoadPhase.OPEN,
    useful_share=None,
    opened_at_s=0.0,
)


class Monitor:
    """A new monitor whose ledger the test writes. notes: what its host is told."""

    def __init__(self, bus: MemoryBus) -> None:
        self.notes = asyncio.Queue[ResultsCounted]()
        self.folded = SimpleNamespace(loads=dict[str, Load]())
        host: Any = SimpleNamespace(folded=self.folded, ready=asyncio.Event(), note=self.notes.put_nowait)
        host.ready.set()
        process: Any = SimpleNamespace(
            bus=bus, settings=SimpleNamespace(pool=POOL), clock=SimpleNamespace(now_s=lambda: 0.0), log=None
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


@pytest.fixture
async def monitor(bus: MemoryBus) -> AsyncIterator[Monitor]:
    monitor = Monitor(bus)
    running = asyncio.create_task(monitor.results.run())
    yield monitor
    running.cancel()
    await asyncio.wait({running})


async def test_results_that_another_monitor_counted_before_they_were_deleted_count(
    bus: MemoryBus, monitor: Monitor
) -> None:
    await add_result(bus, "a", 5, pool=POOL)
    note = await monitor.note()
    assert (note.num_results, note.counted) == (1, ((5, 5),)), "its ledger does not have the load yet"
    monitor.folded.loads["a"] = replace(LOAD, counted=((0, 4),), counted_to=0)
    last = await add_result(bus, "a", 6, pool=POOL)
    note = await monitor.note()
    assert (note.num_results, note.counted, note.counted_to) == (7, ((0, 6),), last)
