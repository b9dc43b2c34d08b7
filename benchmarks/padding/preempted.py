"""Loads whose slots promised jobs take again and again: the paper's experiment, and the useful share of idle windows.

The experiment has a tenth of the paper's times: a load on four slots. Tasks and jobs sleep, so that four slots fit on
two cores. A task computes and has overhead as a batch of PaddingTorch's protein complexes. The job that takes a slot is
short; the next one comes `window_s` seconds after its end.

Useful shares are measured, and predicted by the cost model. The gaps between short jobs are drawn from exponential
distributions, with tasks that have overhead; the last ones are long, with tasks of a second. The prediction knows the
length of each window, and the time from its begin to the first task's begin, as the median of all windows.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.padding.loaded_pool import backlogged, loaded_pool, mapped
from benchmarks.padding.task_functions import rest_and_report
from benchmarks.papers.claims_file import published_value
from benchmarks.report import Measured, Row
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, useful_share
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.load import Load
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.real_pool import RunningPool, job

# --- short jobs that take one slot after another -------------------------------------------------------


_ITERATIONS = 10  # of 20 ms


@contextlib.asynccontextmanager
async def short_jobs(pool: RunningPool, name: str, gaps_s: Iterable[float]) -> AsyncIterator[asyncio.Task[None]]:
    """A job on one slot after each gap, which begins with the end of the job before; ends early with the block."""
    jobs = asyncio.create_task(_submit(pool, name, gaps_s))
    try:
        yield jobs
    finally:
        jobs.cancel()
        await asyncio.wait({jobs})


async def _submit(pool: RunningPool, name: str, gaps_s: Iterable[float]) -> None:
    for number, gap_s in enumerate(gaps_s):
        await asyncio.sleep(gap_s)
        job_id = f"{name}-{number}"
        await pool.acknowledged(job(max_gpus=1, max_iterations=_ITERATIONS), job_id)
        await pool.ended([job_id])


# --- the paper's experiment ----------------------------------------------------------------------------


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


def preempted_rows(measured: list[Measured]) -> Iterator[Row]:
    for run in measured:
        window_s = run["window_s"]
        paper = published_value(f"PT-F4/every-{_PUBLISHED_OVER_HERE * window_s:.0f}-s")
        times = f"{run['preempted_s']:.1f} and {run['exclusive_s']:.1f} s, least {run['least_s']:.1f} s"
        what = f"one of four slots taken every {window_s:g} s"
        yield Row(what, f"{run['ratio']:.2f} x exclusive use", GOALS[window_s], f"{times}; paper {paper:.2f} x")


# --- useful shares of windows --------------------------------------------------------------------------


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


def useful_share_rows(measured: Measured) -> Iterator[Row]:
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
