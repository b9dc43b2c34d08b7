"""Steps of a promised job on one slot of a node, while the other slot is idle and while it executes a padding load.

CPU slots share caches, memory bandwidth and cores with each other, with NATS and with the services. GPUs do not.
"""

import asyncio
import time
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from benchmarks.padding.loaded_pool import loaded_pool, mapped
from benchmarks.padding.task_functions import burn_until
from benchmarks.report import Measured, Row
from elasticflow.shared.state.pool import PoolState
from testbed.fault_evidence import Step, steps
from testbed.real_pool import RunningPool, eventually, job

_SETTLED_S = 0.1  # after the begin and before the end of a task
_NUM_RESAMPLES = 2_000

Period = tuple[float, float]  # begin and end, in seconds of the monotonic clock


async def measure_beside_jobs(*, num_rounds: int, round_s: float) -> Measured:
    """Each round is so many seconds without a task, and as many with one, in changing order.

    Its ratio is that of the two medians. One load is open all the time, so its runner waits in the quiet periods.
    """
    spec = job(
        training_function="benchmarks.padding.busy_job:Busy",
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


def rows(measured: Measured) -> list[Row]:
    low, high = measured["ratio_of_95_percent"]
    beside = (
        f"{measured['step_ms_without_load']:.2f} and {measured['step_ms_with_load']:.2f} ms; "
        f"{measured['rounds']} pairs, {low:.3f} to {high:.3f} by bootstrap (95 %)"
    )
    return [Row("step of a job beside a load", f"{measured['ratio']:.3f} x without", "<= 1.01 x", beside)]
