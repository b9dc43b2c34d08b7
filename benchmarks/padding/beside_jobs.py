"""Padding loads beside promised jobs: the steps of a job on the other slot, and the times from a job's placement on.

CPU slots share caches, memory bandwidth and cores with each other, with NATS and with the services. GPUs do not.

A placement is followed to the end of the runners on its GPUs, and to the job's first step. The ledger has the time at
which the server stored it. A thread looks every millisecond whether a runner is still there.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import psutil
from torch import nn

from benchmarks.padding.loaded_pool import CLOCK, backlogged, loaded_pool, mapped
from benchmarks.padding.runners import kill_and_wait_s
from benchmarks.padding.task_functions import burn_until
from benchmarks.report import Measured, Row
from benchmarks.timing import spread_ms
from elasticflow.shared.messages.events import PlacementDecided, PlanDecided
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.fault_evidence import Step, steps
from testbed.real_pool import RunningPool, eventually, job
from testbed.user_code.tiny_jobs import Steps

# --- steps on the other slot ---------------------------------------------------------------------------


_SETTLED_S = 0.1  # after the begin and before the end of a task
_NUM_RESAMPLES = 2_000

Period = tuple[float, float]  # begin and end, in seconds of the monotonic clock


class Busy(Steps):
    """Its steps compute for some milliseconds. hyperparameters: step_s: seconds that each step sleeps besides."""

    def init_model(self):
        return nn.Sequential(nn.Linear(4, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))


async def measure_beside_jobs(*, num_rounds: int, round_s: float) -> Measured:
    """Each round is so many seconds without a task, and as many with one, in changing order.

    Its ratio is that of the two medians. One load is open all the time, so its runner waits in the quiet periods.
    """
    spec = job(
        training_function="benchmarks.padding.beside_jobs:Busy",
        hyperparameters={"step_s": 0.0},
        max_gpus=1,
        max_iterations=1_000_000,
        deadline_in_s=100_000.0,
    )
    async with loaded_pool() as pool:
        await pool.acknowledged(spec, "promised")
        await pool.when(lambda state: _trains(state, "promised"), "the job trains")
        inputs: SimpleQueue[str | None] = SimpleQueue()
        mapping = asyncio.create_task(mapped(pool, burn_until, iter(inputs.get, None), load_id="load"))
        rounds = [
            await _round(pool.data_dir / f"round-{number}", inputs, round_s, number) for number in range(num_rounds)
        ]
        inputs.put(None)
        await mapping
        return _measured(pool, rounds)


async def _round(folder: Path, inputs: SimpleQueue[str | None], length_s: float, number: int) -> tuple[Period, Period]:
    """A period without a task, and one with a task."""
    await asyncio.to_thread(folder.mkdir)
    if number % 2:
        loaded = await _loaded_period(folder, inputs, length_s)
        return await _period(length_s), loaded
    return await _period(length_s), await _loaded_period(folder, inputs, length_s)


async def _loaded_period(folder: Path, inputs: SimpleQueue[str | None], length_s: float) -> Period:
    inputs.put(str(folder))
    await eventually((folder / "began").exists, "the task has begun")
    period = await _period(length_s)
    (folder / "enough").touch()
    await eventually((folder / "ended").exists, "the task has ended")
    return period


def _trains(state: PoolState, job_id: str) -> bool:
    live = state.live_jobs.get(job_id)
    return live is not None and live.iteration > 0


async def _period(length_s: float) -> Period:
    await asyncio.sleep(_SETTLED_S)
    began_s = time.monotonic()
    await asyncio.sleep(length_s)
    ended_s = time.monotonic()
    await asyncio.sleep(_SETTLED_S)
    return began_s, ended_s


def _measured(pool: RunningPool, rounds: list[tuple[Period, Period]]) -> Measured:
    done = steps(pool.data_dir)
    quiet_s, loaded_s = (np.array([_median_step_s(done, pair[which]) for pair in rounds]) for which in (0, 1))
    ratios = loaded_s / quiet_s
    resampled = np.random.default_rng(0).choice(ratios, (_NUM_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(resampled, axis=1), (0.025, 0.975))
    return {
        "rounds": len(rounds),
        "step_ms_without_load": 1e3 * float(np.median(quiet_s)),
        "step_ms_with_load": 1e3 * float(np.median(loaded_s)),
        "ratio": float(np.median(ratios)),
        "ratio_of_95_percent": [float(low), float(high)],
    }


def _median_step_s(done: list[Step], period: Period) -> float:
    """The median time from the start of a step to the start of the next one."""
    began_s = [step.began_s for step in done if period[0] <= step.began_s <= period[1]]
    return float(np.median(np.diff(began_s)))


def beside_jobs_rows(measured: Measured) -> list[Row]:
    low, high = measured["ratio_of_95_percent"]
    beside = (
        f"{measured['step_ms_without_load']:.2f} and {measured['step_ms_with_load']:.2f} ms; "
        f"{measured['rounds']} pairs, {low:.3f} to {high:.3f} by bootstrap (95 %)"
    )
    return [Row("step of a job beside a load", f"{measured['ratio']:.3f} x without", "<= 1.01 x", beside)]


# --- from a placement to the end of a task and to the first step ---------------------------------------


_TASK_S = 0.02
_ROUND_S = 10.0  # more than a round needs: so many tasks are fed
_LOOK_S = 0.001
_NUM_SLOTS = 2


async def measure_placements(*, num_rounds: int) -> Measured:
    """Each round has a job of both slots without a load, and one that preempts the two runners of a load."""
    gone_at_s = dict[str, float]()
    async with loaded_pool() as pool:
        for number in range(num_rounds):
            await _run_job(pool, f"quiet-{number}")
            num_tasks = int(_NUM_SLOTS * _ROUND_S / _TASK_S)
            load_id = f"load-{number}"
            async with backlogged(pool, "rest", _TASK_S, load_id=load_id, num_tasks=num_tasks):
                runners = await eventually(lambda load_id=load_id: _runners(pool, load_id), "both slots have a runner")
                with _watched(runners) as ends_s:
                    await _run_job(pool, f"loaded-{number}")
                gone_at_s[f"loaded-{number}"] = max(ends_s)
        placed_at_s = dict(_placements(await pool.ledger()))
        began_at_s = _first_steps(pool)
    start_s = {job_id: began_at_s[job_id] - at_s for job_id, at_s in placed_at_s.items()}
    return {
        "rounds": num_rounds,
        "runner_gone_ms": spread_ms([at_s - placed_at_s[job_id] for job_id, at_s in gone_at_s.items()]),
        "sigkill_and_waitpid_ms": spread_ms([kill_and_wait_s() for _ in range(num_rounds)]),
        "first_step_without_load_ms": spread_ms([s for job_id, s in start_s.items() if job_id not in gone_at_s]),
        "first_step_with_load_ms": spread_ms([start_s[job_id] for job_id in gone_at_s]),
    }


async def _run_job(pool: RunningPool, job_id: str) -> None:
    await pool.acknowledged(job(min_gpus=_NUM_SLOTS, max_gpus=_NUM_SLOTS, max_iterations=5), job_id)
    await pool.ended([job_id])


def _runners(pool: RunningPool, load_id: str) -> list[psutil.Process] | None:
    """The runners of both slots; None while one is missing."""
    runners = [process for process in pool.workers() if _writes_log_of(process, load_id)]
    return runners if len(runners) == _NUM_SLOTS else None


def _writes_log_of(process: psutil.Process, load_id: str) -> bool:
    """Unlike a warm process that waits for work."""
    try:
        return any(f"/load-logs/{load_id}." in file.path for file in process.open_files())
    except psutil.NoSuchProcess:
        return False


@contextmanager
def _watched(processes: list[psutil.Process]) -> Iterator[list[float]]:
    """When each of them has gone, in seconds since 1970; complete after the block."""
    ends_s = list[float]()

    def watch(pid: int) -> None:
        while psutil.pid_exists(pid):
            time.sleep(_LOOK_S)
        ends_s.append(CLOCK.now_s())

    threads = [threading.Thread(target=watch, args=(process.pid,), daemon=True) for process in processes]
    for thread in threads:
        thread.start()
    yield ends_s
    for thread in threads:
        thread.join()


def _placements(entries: tuple[Entry, ...]) -> Iterator[tuple[str, float]]:
    """Jobs, and when the server stored that they have GPUs."""
    for entry in entries:
        for event in entry.message.events if isinstance(entry.message, PlanDecided) else ():
            for placed in event.placements if isinstance(event, PlacementDecided) else ():
                if placed.gpus:
                    yield placed.job_id, entry.stored_at_s


def _first_steps(pool: RunningPool) -> dict[str, float]:
    """When each job began its first step, in seconds since 1970."""
    since_boot_s = CLOCK.now_s() - time.monotonic()
    began_s = dict[str, float]()
    for step in steps(pool.data_dir):
        began_s.setdefault(step.job_id, step.began_s + since_boot_s)
    return began_s


def placement_rows(measured: Measured) -> list[Row]:
    found = list[Row]()
    for percentile in ("p50", "p99"):
        killed = f"SIGKILL and waitpid of sleep: {measured['sigkill_and_waitpid_ms'][percentile]:.1f} ms"
        gone = f"{measured['runner_gone_ms'][percentile]:.1f} ms"
        found.append(Row(f"placement to the end of both runners, {percentile}", gone, "", killed))
        without = f"without a load: {measured['first_step_without_load_ms'][percentile]:.0f} ms"
        step = f"{measured['first_step_with_load_ms'][percentile]:.0f} ms"
        found.append(Row(f"placement to the first step beside a load, {percentile}", step, "", without))
    return found
