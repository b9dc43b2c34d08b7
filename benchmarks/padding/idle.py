"""CPU use of the control plane while nothing happens: without a load, and beside an open one whose runner waits."""

import asyncio
import itertools
import queue

import psutil

from benchmarks.padding.loaded_pool import loaded_pool, mapped
from benchmarks.padding.task_functions import draw
from benchmarks.report import Measured, Row
from testbed.real_pool import RunningPool

_SETTLED_S = 10.0  # later than the start of services, and than the last report of the load's progress


async def measure_idle(*, seconds: float, settled_s: float = _SETTLED_S) -> Measured:
    """The CPU use in percent of a core, by process: the services of one node and NATS."""
    async with loaded_pool() as pool:
        await asyncio.sleep(settled_s)
        without = await _cpu_percent(pool, seconds)
        inputs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        inputs.put(0)
        mapping = asyncio.create_task(mapped(pool, draw, iter(inputs.get, None), load_id="open"))
        await pool.when(lambda state: "open" in state.loads and state.loads["open"].num_results == 1, "it has a result")
        await asyncio.sleep(settled_s)
        beside = await _cpu_percent(pool, seconds)
        inputs.put(None)
        await mapping
    return {"seconds": seconds, "percent_without_load": without, "percent_with_open_load": beside}


async def _cpu_percent(pool: RunningPool, seconds: float) -> dict[str, float]:
    before = _cpu_s(pool)
    await asyncio.sleep(seconds)
    after = _cpu_s(pool)
    return {name: 100.0 * (after[name] - before[name]) / seconds for name in after}


def _cpu_s(pool: RunningPool) -> dict[str, float]:
    """The CPU time of each service since its start; its children count with it."""
    cpu_s = dict[str, float]()
    for name, pid in pool.pids().items():
        process = psutil.Process(pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        cpu_s[name] = sum(itertools.chain.from_iterable((time.user, time.system) for time in times))
    return cpu_s


def rows(measured: Measured) -> list[Row]:
    without, beside = (sum(measured[key].values()) for key in ("percent_without_load", "percent_with_open_load"))
    return [
        Row("CPU of an idle pool with an open load", f"{beside:.2f} % of a core", "< 3 %", f"{without:.2f} % without")
    ]
