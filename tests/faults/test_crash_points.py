"""Kill -9 between a decision and its acknowledgement, repeated: each command is decided once, and no GPU twice.

The nodes have no executor, so a pool is cheap and stays full. EF_FAULT_SEEDS=40 kills ten times as often.
"""

import asyncio
import contextlib
import os
from pathlib import Path

import numpy as np

from elasticflow.shared.messages.events import JobAdmitted, PlanDecided
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.simulator.replay.recorded_ledger import Entry
from testbed.fault_evidence import assert_decided_once, assert_one_chain, decisions
from testbed.real_pool import POOL, RunningPool, job, running_pool

NUM_KILLS = 2 * int(os.environ.get("EF_FAULT_SEEDS", "4"))
SEED = int(os.environ.get("EF_FAULT_FIRST_SEED", "0"))
NUM_GPUS = 4
BURST = 40  # commands at once: for a while some are always between being pulled and being acknowledged
PAUSE_S = 0.3  # between two bursts
LATEST_KILL_S = 0.003  # after a decision was seen: its writer learns of it at the same time
VICTIMS = ("admission-0", "admission-1", "allocator", "placement")
UNIT = 1_000_000  # iterations of jobs are multiples of it: a double promise is no small thing
LINEAR = {1: 1.0, 2: 2.0, 4: 4.0}  # a job needs the same GPU-seconds at any share
CONFIG = PoolConfig(resize_cost_s=0.0, throughput_margin=0.0, deadline_slack_s=0.0, curves={"linear/b8": LINEAR})


async def test_kills_between_decision_and_acknowledgement(tmp_path: Path) -> None:
    replicas = {"admission": 2, "monitor": 0}
    async with running_pool(tmp_path, num_nodes=0, replicas=replicas, config=CONFIG) as pool:
        await pool.node_joins("paper", NUM_GPUS)
        killed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kill_after_decisions(pool, killed))
            submitting = tasks.create_task(submit_until(pool, killed))
        job_ids = submitting.result()
        await pool.when(
            lambda state: all(state.job(job_id) is not None for job_id in job_ids), "all commands are decided"
        )
        entries = await pool.ledger()

    assert_one_chain(entries)
    assert_decided_once(entries)
    assert {decision.job_id for decision in decisions(entries)} == set(job_ids)
    assert_promised_once(entries)


async def kill_after_decisions(pool: RunningPool, killed: asyncio.Event) -> None:
    """A replica of admission right after a decision of its own; the others while they answer one."""
    rng = np.random.default_rng(SEED)
    num_killed = 0
    while num_killed < NUM_KILLS or not await some_came_again(pool):
        for victim in map(str, rng.permutation(VICTIMS)):
            await decision_of(pool, victim if victim.startswith("admission") else "admission-")
            await asyncio.sleep(rng.uniform(0.0, LATEST_KILL_S))
            await pool.kill(victim)
            num_killed += 1
    killed.set()


async def some_came_again(pool: RunningPool) -> bool:
    """A kill has hit a command in flight: the server had to deliver it once more."""
    consumer = await pool.bus._connection.api(f"CONSUMER.INFO.EF_SUBMIT_{POOL}.admission")
    delivered = consumer["delivered"]
    return delivered["consumer_seq"] > delivered["stream_seq"]


async def decision_of(pool: RunningPool, instance: str) -> None:
    """Wait for the next one: its id names who took it."""
    entries = pool.client.entries(after_sequence=await pool.client.last_sequence())
    async with contextlib.aclosing(entries):
        async for stored, message in entries:
            if isinstance(message, PlanDecided) and f"-{instance}" in stored.message_id:
                return


async def submit_until(pool: RunningPool, killed: asyncio.Event) -> list[str]:
    """Bursts of commands, until all kills are done; the ids of all that were acknowledged."""
    rng = np.random.default_rng((SEED, 1))
    began_s = pool.client.now_s()
    job_ids: list[str] = []
    while not killed.is_set():
        commands = [random_spec(rng, began_s) for _ in range(BURST)]
        names = [f"job-{len(job_ids) + number}" for number in range(BURST)]
        job_ids += await asyncio.gather(*map(pool.acknowledged, commands, names))
        await asyncio.sleep(PAUSE_S)
    return job_ids


def random_spec(rng: np.random.Generator, began_s: float) -> JobSpec:
    """Large, so that a few dozen fill the pool; due so that it is never quite full.

    Up to each deadline half a unit is left over: far more than goes by while the test runs.
    """
    due_units = int(rng.integers(4, 20)) + 0.5
    return job(
        model_name="linear",
        max_iterations=UNIT * int(rng.integers(1, 4)),
        deadline_s=began_s + due_units * UNIT / NUM_GPUS,
        deadline_in_s=None,
    )


def assert_promised_once(entries: tuple[Entry, ...]) -> None:
    """What was promised up to any deadline fits into the GPUs until then, and nearly fills them.

    The schedules of the admissions are not added up: each rests on its own moment, and moves when it passes.
    """
    admitted = [decision for decision in decisions(entries) if isinstance(decision, JobAdmitted)]
    began_s = min(decision.at_s for decision in admitted)
    filled = 0.0
    for deadline_s in {decision.deadline_s for decision in admitted if decision.deadline_s is not None}:
        needed = [
            decision.spec.max_iterations / LINEAR[1]
            for decision in admitted
            if decision.deadline_s is not None and decision.deadline_s <= deadline_s
        ]
        capacity = NUM_GPUS * (deadline_s - began_s)
        assert sum(needed) <= capacity, f"{sum(needed) / capacity:.3f} of what there is was promised"
        filled = max(filled, sum(needed) / capacity)
    assert filled > 0.8, f"only {filled:.2f} of the pool was ever promised: that proves nothing"
