"""The useful share of idle windows, measured and as the cost model predicts it.

Short jobs end the windows. The gaps between them are drawn from exponential distributions, with tasks that have
overhead; the last ones are long, with tasks of a second. The prediction knows the length of each window, and the time
from its begin to the first task's begin, as the median of all windows.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.padding.loaded_pool import backlogged, loaded_pool
from benchmarks.padding.preempted import OVERHEAD_S, TASK_S
from benchmarks.padding.short_jobs import short_jobs
from benchmarks.report import Measured, Row
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, useful_share
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.load import Load
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.real_pool import RunningPool

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


@dataclass(frozen=True, slots=True)
class _Group:
    """Windows of one load. cost: of its tasks, without the start of runners."""

    name: str
    cost: TaskCost
    gaps_s: tuple[float, ...]


async def measure_useful_shares(
    *, num_windows: int, mean_gaps_s: tuple[float, ...], long_gap_s: float, seed: int
) -> Measured:
    """So many windows for each mean length of the gaps, and a third as many of the long one."""
    rng = np.random.default_rng(seed)
    protein = TaskCost(task_s=TASK_S, overhead_s=OVERHEAD_S, start_stop_s=0.0)
    second = TaskCost(task_s=1.0, overhead_s=0.0, start_stop_s=0.0)
    groups = [
        _Group(f"mean-{number}", protein, tuple(rng.exponential(mean_s, num_windows)))
        for number, mean_s in enumerate(mean_gaps_s)
    ]
    groups.append(_Group("long", second, (long_gap_s,) * max(num_windows // 3, 1)))
    async with loaded_pool(num_nodes=2) as pool:
        for group in groups:
            task_input = group.cost.task_s + group.cost.overhead_s
            async with (
                backlogged(pool, "rest_and_report", task_input, load_id=group.name, num_tasks=_MANY_TASKS),
                short_jobs(pool, group.name, group.gaps_s) as jobs,
            ):
                await jobs
        entries = await pool.ledger()
        windows = [tuple(_windows(pool, entries, group.name)) for group in groups]
    return {"seed": seed} | _shares(groups, windows)


def _windows(pool: RunningPool, entries: tuple[Entry, ...], load_id: str) -> Iterator[Window]:
    """The idle windows that a job ended while this load was live, by the ledger; no window is older than the load."""
    before = PoolState()
    for entry in entries:
        after = ledger_fold.evolve(before, entry.message, entry.sequence)
        load = after.loads.get(load_id)
        if load is not None and load.live:
            for slot, since_s in _taken(before, after):
                began_s = max(since_s, load.opened_at_s)
                ends_s = _task_ends_s(pool, load, slot, began_s, entry.stored_at_s)
                yield Window(began_s, entry.stored_at_s, ends_s)
        before = after


def _taken(before: PoolState, after: PoolState) -> Iterator[tuple[str, float]]:
    """The slots that are no longer idle, and since when they were."""
    for node_id, since_G in before.idle_since_s.items():
        for gpu_index, since_s in enumerate(since_G):
            if since_s < CARRIES_A_JOB == after.idle_since_s[node_id][gpu_index]:
                yield f"{node_id}-{gpu_index}", since_s


def _task_ends_s(pool: RunningPool, load: Load, slot: str, began_s: float, ended_s: float) -> tuple[float, ...]:
    """The ends of tasks, from the output of the slot's runners."""
    log = pool.data_dir / "load-logs" / load.folder_name / f"{slot}.log"
    text = log.read_text() if log.exists() else ""
    return tuple(at_s for at_s in map(float, _ENDED.findall(text)) if began_s <= at_s <= ended_s)


def _shares(groups: list[_Group], windows: list[tuple[Window, ...]]) -> Measured:
    starts_s = [
        window.task_ends_s[0] - group.cost.task_s - group.cost.overhead_s - window.began_s
        for group, ended in zip(groups, windows, strict=True)
        for window in ended
        if window.task_ends_s
    ]
    start_s = max(float(np.median(starts_s)), 0.0) if starts_s else 0.0
    shares = [_share(group, ended, start_s) for group, ended in zip(groups, windows, strict=True)]
    return {"start_stop_s": start_s, "groups": shares}


def _share(group: _Group, windows: tuple[Window, ...], start_s: float) -> Measured:
    """most_tasks: whole tasks that windows of these lengths allow if runners start in no time."""
    lengths_s = [window.length_s for window in windows]
    num_tasks = sum(len(window.task_ends_s) for window in windows)
    return {
        "mean_gap_s": float(np.mean(group.gaps_s)),
        "windows": len(windows),
        "median_window_s": float(np.median(lengths_s)),
        "tasks": num_tasks,
        "most_tasks": sum(int(length_s / (group.cost.task_s + group.cost.overhead_s)) for length_s in lengths_s),
        "useful_share": num_tasks * group.cost.task_s / sum(lengths_s),
        "predicted_useful_share": useful_share(lengths_s, replace(group.cost, start_stop_s=start_s)),
    }


def rows(measured: Measured) -> Iterator[Row]:
    groups = measured["groups"]
    errors = np.abs([group["useful_share"] / group["predicted_useful_share"] - 1.0 for group in groups])
    found = f"median {np.median(errors):.1%}, worst {errors.max():.1%}"
    yield Row("error of the predicted useful share", found, "<= 5 %, 10 %", f"{len(groups)} groups of windows")
    num_tasks, most = (sum(group[key] for group in groups) for key in ("tasks", "most_tasks"))
    starts = f"{num_tasks} of {most}, a runner starts in {measured['start_stop_s']:.2f} s"
    yield Row("whole tasks, of those that windows allow", f"{num_tasks / most:.1%}", ">= 90 %", starts)
    for group in groups:
        share = f"{group['useful_share']:.1%}, predicted {group['predicted_useful_share']:.1%}"
        goal = ">= 80 %" if group is groups[-1] else ""
        yield Row(f"useful share, gaps of {group['mean_gap_s']:.1f} s", share, goal, f"{group['windows']} windows")
