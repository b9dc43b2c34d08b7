"""A full disk: commands are rejected with the reason, all processes live, and continue once there is space."""

import os
import shutil
from pathlib import Path

from elasticflow.shared.errors import StorageFull
from testbed.fault_evidence import assert_decided_once, assert_one_chain, decisions
from testbed.real_pool import RunningPool, job, running_pool
from tests.support.small_disk import small_disk

DISK_KIB = 1_200 << 10  # the streams' own bounds must fit into it
LEFT_BYTES = 48 << 20  # space for what is written until the supervisor checks
LONG = "x" * 20_000  # makes a command that fills the rest soon


async def test_a_full_disk_is_said_and_survived(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_KIB) as disk:
        await fill_and_free(disk)


async def fill_and_free(disk: Path) -> None:
    async with running_pool(disk, num_nodes=1, replicas={}) as pool:
        job_ids = [await pool.acknowledged(job(), "before")]
        await pool.when(lambda state: state.job("before") is not None, "the first command is decided")
        pids = {name: pid for name, pid in pool.pids().items() if name != "nats-server"}

        ballast = fill(disk)
        while await was_acknowledged(pool, f"filling-{len(job_ids)}"):
            job_ids.append(f"filling-{len(job_ids)}")
        ballast.unlink()

        job_ids.append(await pool.acknowledged(job(), "after"))
        state = await pool.ended(job_ids)
        entries = await pool.ledger()
        assert {name: pool.pid(name) for name in pids} == pids, "a service has died of the full disk"

    assert {job.job_id for job in decisions(entries)} == set(job_ids) == set(state.ended_jobs)
    assert_one_chain(entries)
    assert_decided_once(entries)


def fill(disk: Path) -> Path:
    """The file that takes nearly all there is."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - LEFT_BYTES)
    return ballast


async def was_acknowledged(pool: RunningPool, job_id: str) -> bool:
    """Hand in a long command; False if the answer is that the disk is full."""
    try:
        await pool.acknowledged(job(max_iterations=1, description=LONG), job_id, unless=StorageFull)
    except StorageFull:
        return False
    return True
