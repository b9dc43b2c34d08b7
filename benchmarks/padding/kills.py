"""Kill -9 at random moments while a padding load is executed, and what arrives all the same.

The tasks are released a few before each kill, so that the load lasts as long as the kills. The killed client belongs to
another load: that one gets no more tasks, and stays open until it is cancelled.
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import psutil

import elasticflow
from benchmarks.padding.task_functions import draw
from elasticflow.shared.messages.events import LoadFinished
from elasticflow.shared.state.load import LoadPhase
from elasticflow.simulator.replay.recorded_ledger import Entry
from tests.support.random_kills import kill_one
from tests.support.real_pool import POOL, RunningPool, eventually, persistently, running_pool

VICTIMS = (
    "runner",
    "fork server",
    "executor-node-0",
    "executor-node-1",
    "nats-server",
    "monitor",
    "admission",
    "client",
)
LONGEST_PAUSE_S = 0.3  # between the release of tasks and the kill
MAX_ATTEMPTS = 100  # a killed runner counts as a failure of its task
TASK_S = 0.004
_CLIENT = """
import threading
import elasticflow
from benchmarks.padding.task_functions import draw

def inputs():
    yield from range(20)
    threading.Event().wait()

for _ in elasticflow.map(draw, inputs(), nats_url={url!r}, pool={pool!r}, tenant="lab", load_id={load_id!r}, task_s=0.1):
    print("has a result", flush=True)
"""


async def measure_kills(*, num_kills: int, num_tasks: int, seed: int) -> dict[str, Any]:
    """Kill so many processes while so many tasks are executed on two nodes, after a quiet run of the same tasks.

    The seed chooses victims and moments.
    """
    with tempfile.TemporaryDirectory(prefix="ef-bench-") as folder:
        async with running_pool(Path(folder), num_nodes=2, replicas={}) as pool:
            began_s = time.perf_counter()
            expected = await asyncio.to_thread(_results, pool, "quiet", range(num_tasks))
            quiet_s = time.perf_counter() - began_s
            kills = Kills(pool, num_tasks, seed)
            async with asyncio.TaskGroup() as tasks:
                mapping = tasks.create_task(asyncio.to_thread(_results, pool, "killed", kills.inputs()))
                tasks.create_task(kills.play(num_kills))
            killed_s = time.perf_counter() - began_s - quiet_s
            cancelled = await _cancel_all(pool, kills.orphaned_load_ids)
            await pool.when(lambda state: not state.loads["killed"].live, "the load ends")
            entries = await pool.ledger()
    results = mapping.result()
    return {
        "seed": seed,
        "kills": dict(sorted(kills.counts.items())),
        "tasks": num_tasks,
        "results": len(results),
        "different_results": sum(result != quiet for result, quiet in zip(results, expected, strict=False)),
        "finished_events": _num_finished(entries, "killed"),
        "loads_of_killed_clients": len(kills.orphaned_load_ids),
        "of_them_open_until_cancelled": cancelled,
        "quiet_s": quiet_s,
        "killed_s": killed_s,
    }


class Kills:
    """counts: by victim. orphaned_load_ids: loads of killed clients."""

    def __init__(self, pool: RunningPool, num_tasks: int, seed: int) -> None:
        self._pool, self._num_tasks = pool, num_tasks
        self._rng = np.random.default_rng(seed)
        self._released: SimpleQueue[int | None] = SimpleQueue()
        self.counts = Counter[str]()
        self.orphaned_load_ids = list[str]()

    def inputs(self) -> Iterator[int]:
        """Blocks until the next tasks are released."""
        return iter(self._released.get, None)

    async def play(self, num_kills: int) -> None:
        """Each victim once, in random order, and again."""
        try:
            for number, inputs in enumerate(np.array_split(np.arange(self._num_tasks), num_kills)):
                if number % len(VICTIMS) == 0:
                    victims = self._rng.permutation(VICTIMS)
                for seed in inputs:
                    self._released.put(int(seed))
                await asyncio.sleep(self._rng.uniform(0.0, LONGEST_PAUSE_S))
                victim = str(victims[number % len(VICTIMS)])
                await self._kill(victim)
                self.counts[victim] += 1
        finally:
            self._released.put(None)

    async def _kill(self, victim: str) -> None:
        if victim == "client":
            return await self._kill_client()
        orphans = await kill_one(self._pool, victim, self._rng)
        await eventually(lambda: not psutil.wait_procs(orphans, timeout=0)[1], f"nothing survives {victim}")

    async def _kill_client(self) -> None:
        """As soon as it has a result."""
        load_id = f"orphaned-{len(self.orphaned_load_ids)}"
        code = _CLIENT.format(url=self._pool.url, pool=POOL, load_id=load_id)
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        assert await client.stdout.readline(), f"{load_id} has no result"
        client.kill()
        await client.wait()
        self.orphaned_load_ids.append(load_id)


def _results(pool: RunningPool, load_id: str, inputs: Iterable[int]) -> list[float]:
    options = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "load_id": load_id, "task_s": TASK_S}
    return list(elasticflow.map(draw, inputs, max_attempts=MAX_ATTEMPTS, **options))


async def _cancel_all(pool: RunningPool, load_ids: list[str]) -> int:
    """How many of them were open before."""
    loads = (await persistently(pool.client.state)).loads
    for load_id in load_ids:
        await persistently(lambda load_id=load_id: pool.client.cancel_load(load_id, reason="its client was killed"))
    after = (await persistently(pool.client.state)).loads
    return sum(
        loads[load_id].phase is LoadPhase.OPEN and after[load_id].phase is LoadPhase.CANCELLED for load_id in load_ids
    )


def _num_finished(entries: tuple[Entry, ...], load_id: str) -> int:
    return sum(isinstance(entry.message, LoadFinished) and entry.message.load_id == load_id for entry in entries)
