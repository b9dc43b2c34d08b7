"""Which files an executor deletes when loads come and go."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from elasticflow.services.executor.decisions.local_events_and_actions import UsePaddingSlots
from elasticflow.services.executor.loads.load_runners import LoadRunners
from elasticflow.services.executor.loads.result_files import KEEP_S
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus.memory.bus import MemoryBus
from elasticflow.shared.state.load import Load, LoadPhase

POOL = "p"
NOW_S = 1_000_000.0


def load(load_id: str) -> Load:
    return Load(
        load_id=load_id,
        tenant="lab",
        spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0),
        phase=LoadPhase.OPEN,
        useful_share=None,
        opened_at_s=0.0,
    )


def store_old_file(folder: Path, load_id: str) -> None:
    (folder / load_id).mkdir()
    os.utime(folder / load_id, (NOW_S - KEEP_S - 10.0,) * 2)


def stored(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@asynccontextmanager
async def running(results: Path) -> AsyncIterator[LoadRunners]:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    settings: Any = SimpleNamespace(results=results, clock=SimpleNamespace(now_s=lambda: NOW_S), log=None)
    runners = LoadRunners(bus, POOL, settings)
    task = asyncio.create_task(runners.run())
    yield runners
    task.cancel()
    await asyncio.wait({task})


async def until_followed(runners: LoadRunners, *load_ids: str) -> None:
    async with asyncio.timeout(60):
        while set(runners._queues) != set(load_ids):  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.01)


async def test_old_results_are_deleted_once_a_load_opens_and_never_without_contact(tmp_path: Path) -> None:
    for load_id in ("live", "elsewhere", "ended"):
        store_old_file(tmp_path, load_id)
    async with running(tmp_path) as runners:
        runners.use(UsePaddingSlots(loads=(load("live"),), live_load_ids=("live", "elsewhere")))
        await until_followed(runners, "live")
        assert stored(tmp_path) == ["elsewhere", "live"], "other nodes serve a live load"
        runners.use(UsePaddingSlots())
        await until_followed(runners)
        runners.use(UsePaddingSlots(loads=(load("live"),), live_load_ids=("live", "elsewhere")))
        await until_followed(runners, "live")
        assert stored(tmp_path) == ["elsewhere", "live"], "without contact, no load is known"
