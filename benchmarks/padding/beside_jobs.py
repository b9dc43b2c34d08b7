"""Steps of a promised job on one slot of a node, while the other slot is idle and while it executes a padding load.

CPU slots share caches, memory bandwidth and cores with each other, with NATS and with the services. GPUs do not.
"""

import asyncio
import time

import numpy as np

from benchmarks.padding.loaded_pool import backlogged, loaded_pool
from benchmarks.padding.parts import Measured, Row
from elasticflow.shared.state.pool import PoolState
from tests.support.fault_evidence import Step, steps
from tests.support.real_pool import RunningPool, job

_TASK_S = 0.02
_SETTLED_S = 0.3  # after the begin and before the end of a load

Period = tuple[float, float]  # begin and end, in seconds of the monotonic clock


async def measure_beside_jobs(*, num_rounds: int, round_s: float) -> Measured:
    """Each round is so many seconds without a load, then as many with one. Its ratio is that of the two medians."""
    periods = list[tuple[Period, Period]]()
    spec = job(
        training_function="benchmarks.padding.busy_job:Busy",
        hyperparameters={"step_s": 0.0},
        max_gpus=1,
        max_iterations=60_000,
    )
    async with loaded_pool() as pool:
        await pool.acknowledged(spec, "promised")
        await pool.when(lambda state: _trains(state, "promised"), "the job trains")
        for number in range(num_rounds):
            quiet = await _period(round_s)
            num_tasks = int(4 * (round_s + 2 * _SETTLED_S) / _TASK_S)
            async with backlogged(pool, "burn", _TASK_S, load_id=f"load-{number}", num_tasks=num_tasks):
                loaded = await _period(round_s)
            periods.append((quiet, loaded))
        return _measured(pool, periods)


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


def _measured(pool: RunningPool, periods: list[tuple[Period, Period]]) -> Measured:
    done = steps(pool.data_dir)
    quiet_s, loaded_s = (np.array([_median_step_s(done, pair[which]) for pair in periods]) for which in (0, 1))
    ratios = loaded_s / quiet_s
    return {
        "rounds": len(periods),
        "step_ms_without_load": 1e3 * float(np.median(quiet_s)),
        "step_ms_with_load": 1e3 * float(np.median(loaded_s)),
        "ratio": float(np.median(ratios)),
        "least_ratio": float(ratios.min()),
        "greatest_ratio": float(ratios.max()),
    }


def _median_step_s(done: list[Step], period: Period) -> float:
    """From the begin of a step to the begin of the next one."""
    began_s = [step.began_s for step in done if period[0] <= step.began_s <= period[1]]
    return float(np.median(np.diff(began_s)))


def rows(measured: Measured) -> list[Row]:
    beside = (
        f"{measured['step_ms_without_load']:.1f} and {measured['step_ms_with_load']:.1f} ms; "
        f"ratios {measured['least_ratio']:.3f} to {measured['greatest_ratio']:.3f}"
    )
    return [Row("step of a job beside a load", f"{measured['ratio']:.3f} x without", "", beside)]
