"""The useful share of idle windows of random lengths, measured and as the cost model predicts it.

Short jobs end the windows; the gaps between them are drawn from exponential distributions. The prediction knows the
length of each window, and the time from its begin to the first task's begin, as the median of all windows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.padding.loaded_pool import backlogged, loaded_pool
from benchmarks.padding.parts import Measured, Row
from benchmarks.padding.preempted import OVERHEAD_S, TASK_S
from benchmarks.padding.short_jobs import short_jobs
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, useful_share
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.idle_windows import CARRIES_A_JOB
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.replay.recorded_ledger import Entry
from tests.support.real_pool import RunningPool

_ENDED = re.compile(r"^ended at ([\d.]+)$", re.MULTILINE)
_MANY_TASKS = 100_000


@dataclass(frozen=True, slots=True)
class Window:
    """A GPU is idle from began_s to ended_s. task_ends_s: of the tasks that ended in it."""

    began_s: float
    ended_s: float
    task_ends_s: tuple[float, ...]

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s


async def measure_useful_shares(*, num_windows: int, mean_gaps_s: tuple[float, ...], seed: int) -> Measured:
    """So many windows for each mean length of the gaps."""
    rng = np.random.default_rng(seed)
    async with loaded_pool(num_nodes=2) as pool:
        for number, mean_s in enumerate(mean_gaps_s):
            name = f"gaps-{number}"
            gaps_s = rng.exponential(mean_s, num_windows)
            async with (
                backlogged(pool, "rest_and_report", TASK_S + OVERHEAD_S, load_id=name, num_tasks=_MANY_TASKS),
                short_jobs(pool, name, gaps_s) as jobs,
            ):
                await jobs
        entries = await pool.ledger()
        groups = [tuple(_windows(pool, entries, f"gaps-{number}")) for number in range(len(mean_gaps_s))]
    return {"seed": seed} | _shares(groups, mean_gaps_s)


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


def _shares(groups: list[tuple[Window, ...]], mean_gaps_s: tuple[float, ...]) -> Measured:
    windows = [window for group in groups for window in group]
    used = [window for window in windows if window.task_ends_s]
    starts_s = [window.task_ends_s[0] - TASK_S - OVERHEAD_S - window.began_s for window in used]
    start_s = max(float(np.median(starts_s)), 0.0) if starts_s else 0.0
    cost = TaskCost(task_s=TASK_S, overhead_s=OVERHEAD_S, start_stop_s=start_s)
    num_tasks_W = np.array([len(window.task_ends_s) for window in windows])
    whole_W = np.array([window.length_s - start_s for window in windows]) // (TASK_S + OVERHEAD_S)
    return {
        "start_stop_s": start_s,
        "windows": len(windows),
        "windows_with_the_predicted_tasks": int(np.sum(num_tasks_W == np.maximum(whole_W, 0))),
        "groups": [
            {"mean_gap_s": mean_s} | _share(group, cost) for group, mean_s in zip(groups, mean_gaps_s, strict=True)
        ],
    }


def _share(windows: tuple[Window, ...], cost: TaskCost) -> Measured:
    lengths_s = [window.length_s for window in windows]
    measured = sum(len(window.task_ends_s) for window in windows) * TASK_S / sum(lengths_s)
    return {
        "windows": len(windows),
        "median_window_s": float(np.median(lengths_s)),
        "useful_share": measured,
        "predicted_useful_share": useful_share(lengths_s, cost),
    }


def rows(measured: Measured) -> Iterator[Row]:
    shares = np.array([(group["useful_share"], group["predicted_useful_share"]) for group in measured["groups"]])
    errors = np.abs(shares[:, 0] / shares[:, 1] - 1.0)
    means = ", ".join(f"{group['mean_gap_s']:g}" for group in measured["groups"])
    exact = f"{measured['windows_with_the_predicted_tasks']} of {measured['windows']} windows as predicted"
    found = f"median {np.median(errors):.1%}, worst {errors.max():.1%}"
    yield Row(f"error of the useful share by mean gap ({means} s)", found, "<= 5 %, 10 %", exact)
    for group in measured["groups"]:
        share = f"{group['useful_share']:.1%}, predicted {group['predicted_useful_share']:.1%}"
        yield Row(f"useful share, mean gap {group['mean_gap_s']:g} s", share, "", f"{group['windows']} windows")
