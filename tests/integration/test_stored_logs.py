"""A real pool: the lines of a job's workers reach a user without the nodes' storage, also past a killed executor."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import POOL, RunningPool, job, slowed_down
from tests.support.executor_process import ROOT

WAIT_S = 240.0
TALKS = "testbed.user_code.tiny_jobs:Talks"


async def follower(pool: RunningPool, folder: Path, job_id: str) -> asyncio.subprocess.Process:
    """`eflow logs -f` of a user elsewhere."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    environment |= {"NATS_URL": pool.client.endpoint.nats_url, "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "elasticflow", "logs", "-f", job_id, "--all-workers", "--pool", POOL)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdout=pipe, stderr=pipe)


def trains(state: PoolState) -> bool:
    return "talks" in state.live_jobs and state.live_jobs["talks"].training


def of_file(lines: list[str], file: Path) -> list[str]:
    return [line for line in lines if line.startswith(f"{file.stem} | ")]


@pytest.mark.asyncio(loop_scope="session")
async def test_lines_are_followed_without_shared_storage_through_a_killed_executor(
    session_pool: RunningPool, tmp_path: Path
) -> None:
    pool = session_pool
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    slow_down = tmp_path / "slow_down"
    spec = slowed_down(job(JobClass.BEST_EFFORT, training_function=TALKS, max_iterations=400), slow_down)
    await pool.acknowledged(spec, "talks")
    await pool.when(trains, "it trains")
    async with asyncio.timeout(WAIT_S):
        process = await follower(pool, elsewhere, "talks")
        assert process.stdout is not None
        first = (await process.stdout.readline()).decode()
        await pool.kill(next(name for name in pool.pids() if name.startswith("executor")))
        slow_down.unlink()
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    ended = (await pool.ended(["talks"])).ended_jobs["talks"]
    assert ended.phase is Phase.FINISHED
    followed = [first.rstrip("\n"), *out.decode().splitlines()]
    reader, stored = pool.client.stored_logs(ended), list[str]()

    async with asyncio.timeout(WAIT_S):
        while not reader.complete:
            stored += [line async for line in reader.new_lines(await pool.client.state())]
            await asyncio.sleep(0.1)  # nodes publish once a second
    files = sorted((pool.data_dir / "logs" / "talks").glob("g*-r0.log"))
    for file in files:
        written = [f"{file.stem} | {line}" for line in file.read_text().splitlines()]
        assert of_file(stored, file) == written
        assert of_file(followed, file) == written[: len(of_file(followed, file))]
    assert len(files) >= 2
    assert stored[: len(followed)] == followed
