"""Times from the placement of a job in the ledger to the end of the runners on its GPUs, and to its first step.

The ledger has the time at which the server stored the placement. A thread looks every millisecond whether a runner is
still there.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from benchmarks.padding.loaded_pool import CLOCK, backlogged, loaded_pool
from benchmarks.padding.runners import kill_and_wait_s
from benchmarks.report import Measured, Row
from benchmarks.scheduling.timing import spread_ms
from elasticflow.shared.messages.events import PlacementDecided, PlanDecided
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.fault_evidence import steps
from testbed.real_pool import RunningPool, eventually, job

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


def rows(measured: Measured) -> list[Row]:
    found = list[Row]()
    for percentile in ("p50", "p99"):
        killed = f"SIGKILL and waitpid of sleep: {measured['sigkill_and_waitpid_ms'][percentile]:.1f} ms"
        gone = f"{measured['runner_gone_ms'][percentile]:.1f} ms"
        found.append(Row(f"placement to the end of both runners, {percentile}", gone, "", killed))
        without = f"without a load: {measured['first_step_without_load_ms'][percentile]:.0f} ms"
        step = f"{measured['first_step_with_load_ms'][percentile]:.0f} ms"
        found.append(Row(f"placement to the first step beside a load, {percentile}", step, "", without))
    return found
