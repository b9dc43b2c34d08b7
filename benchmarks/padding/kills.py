"""Kill -9 at random moments while a padding load is executed, and what arrives all the same.

The tasks are released a few before each kill, so that the load lasts as long as the kills. The killed client belongs to
another load, which is cancelled then.
"""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from queue import SimpleQueue

import numpy as np
import psutil

from benchmarks.padding.loaded_pool import loaded_pool, mapped
from benchmarks.padding.task_functions import draw
from benchmarks.report import Measured, Row
from elasticflow.shared.messages.events import LoadFinished
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.real_pool import POOL, RunningPool, eventually, kill_one, persistently

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
TASKS = {"task_s": 0.004, "max_attempts": 100}  # a killed runner counts as a failure of its task
_CLIENT = """
import threading
import elasticflow
from benchmarks.padding.task_functions import draw

def inputs():
    yield from range(20)
    threading.Event().wait()

pool = {{"nats_url": {url!r}, "pool": {pool!r}, "tenant": "lab"}}
for _ in elasticflow.map(draw, inputs(), load_id={load_id!r}, task_s=0.1, **pool):
    print("has a result", flush=True)
"""


async def measure_kills(*, num_kills: int, num_tasks: int, seed: int) -> Measured:
    """Kill so many processes while so many tasks are executed on two nodes, after a quiet run of the same tasks.

    The seed chooses victims and moments.
    """
    async with loaded_pool(num_nodes=2) as pool:
        expected, quiet_s = await mapped(pool, draw, range(num_tasks), load_id="quiet", **TASKS)
        kills = Kills(pool, num_tasks, seed)
        async with asyncio.TaskGroup() as tasks:
            mapping = tasks.create_task(mapped(pool, draw, kills.inputs(), load_id="killed", **TASKS))
            tasks.create_task(kills.play(num_kills))
        results, killed_s = mapping.result()
        await pool.when(lambda state: not state.loads["killed"].live, "the load ends")
        entries = await pool.ledger()
    return {
        "seed": seed,
        "kills": dict(sorted(kills.counts.items())),
        "tasks": num_tasks,
        "results": len(results),
        "different_results": sum(result != quiet for result, quiet in zip(results, expected, strict=False)),
        "finished_events": _num_finished(entries, "killed"),
        "quiet_s": quiet_s,
        "killed_s": killed_s,
    }


class Kills:
    """counts: by victim."""

    def __init__(self, pool: RunningPool, num_tasks: int, seed: int) -> None:
        self._pool, self._num_tasks = pool, num_tasks
        self._rng = np.random.default_rng(seed)
        self._released: SimpleQueue[int | None] = SimpleQueue()
        self._is_fed = threading.Event()
        self.counts = Counter[str]()

    def inputs(self) -> Iterator[int]:
        """Blocks until the next tasks are released."""
        self._is_fed.set()
        yield from iter(self._released.get, None)

    async def play(self, num_kills: int) -> None:
        """Each victim once, in random order, and again, from the moment on when the load is open and fed."""
        await asyncio.to_thread(self._is_fed.wait)
        try:
            shares = np.array_split(np.arange(self._num_tasks), num_kills)
            for inputs, victim in zip(shares, self._victims(), strict=False):
                for seed in inputs:
                    self._released.put(int(seed))
                await asyncio.sleep(self._rng.uniform(0.0, LONGEST_PAUSE_S))
                await (self._kill_client() if victim == "client" else self._kill(victim))
                self.counts[victim] += 1
        finally:
            self._released.put(None)

    def _victims(self) -> Iterator[str]:
        while True:
            yield from map(str, self._rng.permutation(VICTIMS))

    async def _kill(self, victim: str) -> None:
        orphans = await kill_one(self._pool, victim, self._rng)
        await eventually(lambda: not psutil.wait_procs(orphans, timeout=0)[1], f"nothing survives {victim}")

    async def _kill_client(self) -> None:
        """Kill a client as soon as it has a result."""
        load_id = f"orphaned-{self.counts['client']}"
        code = _CLIENT.format(url=self._pool.url, pool=POOL, load_id=load_id)
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        assert await client.stdout.readline(), f"{load_id} has no result"
        client.kill()
        await client.wait()
        await persistently(lambda: self._pool.client.cancel_load(load_id, reason="its client was killed"))


def _num_finished(entries: tuple[Entry, ...], load_id: str) -> int:
    return sum(isinstance(entry.message, LoadFinished) and entry.message.load_id == load_id for entry in entries)


def rows(measured: Measured) -> list[Row]:
    num_kills = sum(measured["kills"].values())
    what = f"{num_kills} kills while {measured['tasks']:,} tasks are executed"
    missing = measured["tasks"] - measured["results"]
    found = f"{missing} results missing, {measured['different_results']} different"
    beside = f"{measured['killed_s']:.0f} s, without kills {measured['quiet_s']:.0f} s"
    ends = f"{measured['finished_events']} end in the ledger"
    return [Row(what, found, "none", beside), Row("the load in the ledger", ends, "1", f"seed {measured['seed']}")]
