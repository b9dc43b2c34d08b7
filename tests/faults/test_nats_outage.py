"""Kill -9 of the NATS server while commands arrive: no acknowledged message is lost, and no service needs a restart."""

import asyncio
from pathlib import Path

import numpy as np

from testbed.fault_evidence import assert_decided_once, assert_one_chain, decisions
from testbed.real_pool import RunningPool, job, running_pool

NUM_KILLS = 8
LONGEST_PAUSE_S = 0.5
SEED = 0


async def test_an_outage_loses_nothing_and_stops_nobody(tmp_path: Path) -> None:
    async with running_pool(tmp_path, num_nodes=0, replicas={"admission": 2, "monitor": 0}) as pool:
        await pool.node_joins("paper", num_gpus=4)
        pids = {name: pid for name, pid in pool.pids().items() if name != "nats-server"}
        killed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            submitting = tasks.create_task(submit_until(pool, killed))
            await kill_again_and_again(pool)
            killed.set()
        job_ids = submitting.result()
        await pool.when(
            lambda state: all(state.job(job_id) is not None for job_id in job_ids), "all commands are decided"
        )
        entries = await pool.ledger()
        assert {name: pool.pid(name) for name in pids} == pids, "a service did not live through the outage"

    assert {decision.job_id for decision in decisions(entries)} == set(job_ids)
    assert_one_chain(entries)
    assert_decided_once(entries)


async def kill_again_and_again(pool: RunningPool) -> None:
    """At random moments; each outage ends before the next begins."""
    rng = np.random.default_rng(SEED)
    for _ in range(NUM_KILLS):
        await asyncio.sleep(rng.uniform(0.0, LONGEST_PAUSE_S))
        pid = pool.pids()["nats-server"]
        await pool.kill("nats-server")
        await pool.restarted("nats-server", pid)
        await pool.acknowledged(job(), "over")  # the same command each time: there is an end to this outage


async def submit_until(pool: RunningPool, killed: asyncio.Event) -> list[str]:
    """One command after the other; the ids of all that were acknowledged."""
    job_ids = ["over"]
    while not killed.is_set():
        job_ids.append(await pool.acknowledged(job(), f"job-{len(job_ids)}"))
        await asyncio.sleep(0.01)
    return job_ids
