"""Kill -9 at random moments, for many seeds: each acknowledged job ends, and none is decided or trained twice.

Each seed kills every victim. EF_FAULT_SEEDS=20 runs twenty seeds instead of two, and EF_FAULT_FIRST_SEED=7 begins with
the seventh: a failure names its seed, and the seed repeats its kills.
"""

import asyncio
import os
from pathlib import Path

import numpy as np
import psutil
import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Phase
from testbed.fault_evidence import assert_sound, iterations_trained
from testbed.real_pool import RunningPool, eventually, job, kill_one, persistently, running_pool
from tests.support.rings import few_daily

FIRST_SEED = int(os.environ.get("EF_FAULT_FIRST_SEED", "0"))
NUM_SEEDS = int(os.environ.get("EF_FAULT_SEEDS", "2"))
LONGEST_PAUSE_S = 2.0  # between two kills
VICTIMS = (
    "admission-0",
    "admission-1",
    "allocator",
    "placement",
    "monitor",
    "executor-node-0",
    "executor-node-1",
    "worker",
    "another worker",
    "fork server",
    "nats-server",
)
LONG_STEPS = {"step_s": 0.5}  # a successor that did not wait would be seen to train beside it
ITERATIONS = {"slo-long": 250, "slo-short": 80, "soft": 80, "best-effort": 16, "unprofiled": 60}


@pytest.mark.parametrize("seed", few_daily(range(FIRST_SEED, FIRST_SEED + NUM_SEEDS), 1))
async def test_everything_acknowledged_comes_to_its_end(seed: int, tmp_path: Path) -> None:
    async with running_pool(tmp_path, num_nodes=2, replicas={"admission": 2}) as pool:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_each(pool, seed))
            tasks.create_task(submit_all(pool, seed))
        await persistently(lambda: pool.client.cancel("until-the-last-kill"))
        state = await pool.ended([*ITERATIONS, "until-the-last-kill", "cancelled", "impossible"])
        await eventually(lambda: not pool.workers(), "no worker is left")
        entries = await pool.ledger()

    phases = {job_id: job.phase for job_id, job in state.ended_jobs.items()}
    assert phases == dict.fromkeys(ITERATIONS, Phase.FINISHED) | {
        "until-the-last-kill": Phase.CANCELLED,
        "cancelled": Phase.CANCELLED,
        "impossible": Phase.REJECTED,
    }, "\n".join(f"{job.job_id}: {job.explanation}" for job in state.ended_jobs.values())
    assert_sound(entries, pool.data_dir)
    for job_id, max_iterations in ITERATIONS.items():
        assert state.ended_jobs[job_id].iteration == max_iterations
        assert iterations_trained(pool.data_dir, job_id) >= set(range(max_iterations)), job_id


async def submit_all(pool: RunningPool, seed: int) -> None:
    """Commands of every kind, a little apart; each is acknowledged before the next is made."""
    rng = np.random.default_rng((seed, 1))
    commands = {
        "until-the-last-kill": job(JobClass.BEST_EFFORT, max_iterations=1_000_000),  # there is a worker to kill
        "slo-long": job(max_iterations=250),
        "unprofiled": job(model_name="", max_iterations=60),
        "cancelled": job(JobClass.BEST_EFFORT, max_iterations=1_000_000),
        "slo-short": job(max_iterations=80),
        "impossible": job(max_iterations=1_000_000, deadline_in_s=60.0),
        "soft": job(JobClass.SOFT, max_iterations=80),
        "best-effort": job(JobClass.BEST_EFFORT, max_iterations=16, hyperparameters=LONG_STEPS),
    }
    for job_id, spec in commands.items():
        await pool.acknowledged(spec, job_id)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
    await pool.acknowledged(commands["slo-long"], "slo-long")  # the same command
    await pool.acknowledged(commands["soft"], "slo-long")  # another command under a used id
    await persistently(lambda: pool.client.cancel("cancelled", reason="changed my mind"))


async def kill_each(pool: RunningPool, seed: int) -> None:
    """At moments and in an order of the seed's choice."""
    rng = np.random.default_rng((seed, 3))
    for victim in rng.permutation(VICTIMS):
        await asyncio.sleep(rng.uniform(0.0, LONGEST_PAUSE_S))
        orphans = await kill_one(pool, str(victim), rng)
        await eventually(
            lambda orphans=orphans: not psutil.wait_procs(orphans, timeout=0)[1], f"nothing survives {victim}"
        )
