"""The paper's experiment at a tenth of its times: a load on four slots, of which jobs take one again and again.

Tasks and jobs sleep, so that four slots fit on two cores. A task of 1.09 s with 0.28 s of overhead is PaddingTorch's
protein task. The job that takes a slot is short; the next one comes `window_s` seconds after its end.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.padding.loaded_pool import loaded_pool, mapped
from benchmarks.padding.parts import Measured, Row
from benchmarks.padding.task_functions import rest_and_report
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, useful_share
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.idle_windows import CARRIES_A_JOB
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.replay.recorded_ledger import Entry
from tests.support.real_pool import RunningPool, job

TASK_S, OVERHEAD_S = 1.09, 0.28
_NUM_SLOTS = 4
JOB_ITERATIONS = 10  # of 20 ms
GOALS = {3.0: ("<= 1.25 x", "1.88 x"), 4.3: ("<= 1.20 x", "1.60 x")}  # and the paper's, by the length of a window
_ENDED = re.compile(r"^ended at ([\d.]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Window:
    """A GPU is idle from began_s to ended_s. task_ends_s: of the tasks that ended in it."""

    began_s: float
    ended_s: float
    task_ends_s: tuple[float, ...]

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s


async def measure_preempted(*, num_tasks: int, windows_s: tuple[float, ...] = tuple(GOALS)) -> list[Measured]:
    """For each length of a window: the total time beside that of exclusive use, and the useful share by window."""
    async with loaded_pool(num_nodes=2) as pool:
        await _load_s(pool, "warm-up", _NUM_SLOTS)
        runs = [await _measure_window(pool, num_tasks, window_s) for window_s in windows_s]
        entries = await pool.ledger()
        return [run | _shares(tuple(_windows(pool, entries, _load_id(run["window_s"])))) for run in runs]


async def _measure_window(pool: RunningPool, num_tasks: int, window_s: float) -> Measured:
    exclusive_s = await _load_s(pool, f"exclusive-{_load_id(window_s)}", num_tasks)
    preempted_s = await _preempted_s(pool, num_tasks, window_s)
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


def _load_id(window_s: float) -> str:
    return f"preempted-{1e3 * window_s:.0f}ms"


async def _preempted_s(pool: RunningPool, num_tasks: int, window_s: float) -> float:
    load_id = _load_id(window_s)
    async with asyncio.TaskGroup() as tasks:
        jobs = tasks.create_task(_take_slots(pool, load_id, window_s))
        taken_s = await _load_s(pool, load_id, num_tasks)
        jobs.cancel()
    return taken_s


async def _take_slots(pool: RunningPool, name: str, window_s: float) -> None:
    """One short job after another, until cancelled."""
    number = 0
    while True:
        await asyncio.sleep(window_s)
        job_id = f"{name}-{number}"
        await pool.acknowledged(job(max_gpus=1, max_iterations=JOB_ITERATIONS), job_id)
        await pool.ended([job_id])
        number += 1


def _windows(pool: RunningPool, entries: tuple[Entry, ...], load_id: str) -> Iterator[Window]:
    """The idle windows that a job ended while this load was live, by the ledger; no window is older than the load."""
    before = PoolState()
    for entry in entries:
        after = ledger_fold.evolve(before, entry.message, entry.sequence)
        load = after.loads.get(load_id)
        if load is not None and load.live:
            for slot, since_s in _taken(before, after):
                began_s = max(since_s, load.opened_at_s)
                ends_s = _task_ends_s(pool, load_id, slot, began_s, entry.stored_at_s)
                yield Window(began_s, entry.stored_at_s, ends_s)
        before = after


def _taken(before: PoolState, after: PoolState) -> Iterator[tuple[str, float]]:
    """The slots that are no longer idle, and since when they were."""
    for node_id, since_G in before.idle_since_s.items():
        for gpu_index, since_s in enumerate(since_G):
            if since_s < CARRIES_A_JOB == after.idle_since_s[node_id][gpu_index]:
                yield f"{node_id}-{gpu_index}", since_s


def _task_ends_s(pool: RunningPool, load_id: str, slot: str, began_s: float, ended_s: float) -> tuple[float, ...]:
    """From the output of the slot's runners."""
    log = pool.data_dir / "logs" / "loads" / load_id / f"{slot}.log"
    text = log.read_text() if log.exists() else ""
    return tuple(at_s for at_s in map(float, _ENDED.findall(text)) if began_s <= at_s <= ended_s)


def _shares(windows: tuple[Window, ...]) -> Measured:
    """The useful share of each window, measured and by the cost model with the measured start of runners."""
    if not (used := [window for window in windows if window.task_ends_s]):
        return {"windows": len(windows)}
    starts_s = [window.task_ends_s[0] - TASK_S - OVERHEAD_S - window.began_s for window in used]
    cost = TaskCost(task_s=TASK_S, overhead_s=OVERHEAD_S, start_stop_s=max(float(np.median(starts_s)), 0.0))
    lengths_s = np.array([window.length_s for window in windows])
    measured_W = np.array([len(window.task_ends_s) * TASK_S for window in windows]) / lengths_s
    predicted_W = np.array([useful_share([length_s], cost) for length_s in lengths_s])
    errors_W = np.abs(measured_W - predicted_W)
    return {
        "windows": len(windows),
        "median_window_s": float(np.median(lengths_s)),
        "start_stop_s": cost.start_stop_s,
        "useful_share": float(measured_W @ lengths_s / lengths_s.sum()),
        "predicted_useful_share": useful_share(lengths_s, cost),
        "median_error": float(np.median(errors_W)),
        "worst_error": float(errors_W.max()),
    }


def rows(measured: list[Measured]) -> Iterator[Row]:
    for run in measured:
        goal, paper = GOALS[run["window_s"]]
        times = f"{run['preempted_s']:.1f} and {run['exclusive_s']:.1f} s, least {run['least_s']:.1f} s; paper {paper}"
        what = f"one of four slots taken every {run['window_s']:g} s"
        yield Row(what, f"{run['ratio']:.2f} x exclusive use", goal, times)
        if "useful_share" in run:
            errors = f"by window: median error {run['median_error']:.1%}, worst {run['worst_error']:.1%}"
            share = f"{run['useful_share']:.1%}, predicted {run['predicted_useful_share']:.1%}"
            yield Row(f"useful share of its {run['windows']} windows", share, "", errors)
