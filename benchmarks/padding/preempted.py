"""The paper's experiment at a tenth of its times: a load on four slots, of which jobs take one again and again.

Tasks and jobs sleep, so that four slots fit on two cores. A task computes and has overhead as a batch of PaddingTorch's
protein complexes. The job that takes a slot is short; the next one comes `window_s` seconds after its end.
"""

import itertools
from collections.abc import Iterator

from benchmarks.padding.loaded_pool import loaded_pool, mapped
from benchmarks.padding.short_jobs import short_jobs
from benchmarks.padding.task_functions import rest_and_report
from benchmarks.papers.published_values import published_value
from benchmarks.report import Measured, Row
from testbed.real_pool import RunningPool

_PUBLISHED_OVER_HERE = 10.0  # of all times
TASK_S, OVERHEAD_S = (
    published_value(f"PT-T2/paddingtorch-{part}") / _PUBLISHED_OVER_HERE for part in ("compute", "communicate")
)
_NUM_SLOTS = 4
GOALS = {3.0: "<= 1.25 x", 4.3: "<= 1.20 x"}  # by the length of a window


async def measure_preempted(*, num_tasks: int, windows_s: tuple[float, ...] = tuple(GOALS)) -> list[Measured]:
    """The total time beside that of exclusive use, for each length of a window."""
    async with loaded_pool(num_nodes=2) as pool:
        await _load_s(pool, "warm-up", _NUM_SLOTS)
        return [await _measure_window(pool, num_tasks, window_s) for window_s in windows_s]


async def _measure_window(pool: RunningPool, num_tasks: int, window_s: float) -> Measured:
    name = f"{1e3 * window_s:.0f}ms"
    exclusive_s = await _load_s(pool, f"exclusive-{name}", num_tasks)
    async with short_jobs(pool, name, itertools.repeat(window_s)):
        preempted_s = await _load_s(pool, f"preempted-{name}", num_tasks)
    return {
        "window_s": window_s,
        "tasks": num_tasks,
        "least_s": num_tasks * (TASK_S + OVERHEAD_S) / _NUM_SLOTS,
        "exclusive_s": exclusive_s,
        "preempted_s": preempted_s,
        "ratio": preempted_s / exclusive_s,
    }


async def _load_s(pool: RunningPool, load_id: str, num_tasks: int) -> float:
    inputs = [TASK_S + OVERHEAD_S] * num_tasks
    times = {"task_s": TASK_S, "overhead_s": OVERHEAD_S}
    return (await mapped(pool, rest_and_report, inputs, load_id=load_id, **times))[1]


def rows(measured: list[Measured]) -> Iterator[Row]:
    for run in measured:
        window_s = run["window_s"]
        paper = published_value(f"PT-F4/every-{_PUBLISHED_OVER_HERE * window_s:.0f}-s")
        times = f"{run['preempted_s']:.1f} and {run['exclusive_s']:.1f} s, least {run['least_s']:.1f} s"
        what = f"one of four slots taken every {window_s:g} s"
        yield Row(what, f"{run['ratio']:.2f} x exclusive use", GOALS[window_s], f"{times}; paper {paper:.2f} x")
