"""A real pool: a job that writes more lines than anyone reads harms neither its node nor its neighbour."""

import asyncio
import sys

import psutil
import pytest

from elasticflow.services.executor.processes.job_logs import MAX_LOG_BYTES
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.process.files import BLOCK_BYTES
from elasticflow.shared.state.job import Phase
from testbed.real_pool import POOL, RunningPool, eventually, job
from tests.support.holes import skip_without_holes

FLOODS = "testbed.user_code.tiny_jobs:Floods"
NUM_ITERATIONS = 30  # of 100,000 lines of 100 bytes each
MAX_GROWTH_BYTES = 150 << 20  # of any process; half of what the job writes


@pytest.mark.asyncio(loop_scope="session")
async def test_a_flood_of_lines_is_bounded_on_disk_and_in_memory_and_its_neighbour_trains(
    session_pool: RunningPool,
) -> None:
    pool = session_pool
    skip_without_holes(pool.data_dir)
    before = {name: psutil.Process(pid).memory_info().rss for name, pid in pool.pids().items()}
    pids = pool.pids()
    flood = job(JobClass.BEST_EFFORT, training_function=FLOODS, max_iterations=NUM_ITERATIONS)
    await pool.acknowledged(flood, "flood")
    await pool.acknowledged(job(JobClass.BEST_EFFORT), "neighbour")
    ended = (await pool.ended(["flood", "neighbour"])).ended_jobs
    assert {ended[name].phase for name in ("flood", "neighbour")} == {Phase.FINISHED}
    assert pool.pids() == pids, "no process was restarted"
    grown = {name: psutil.Process(pid).memory_info().rss - before[name] for name, pid in pids.items()}
    assert {name: size for name, size in grown.items() if size > MAX_GROWTH_BYTES} == {}
    folder = next(pool.data_dir.rglob("logs/flood"))
    max_bytes = MAX_LOG_BYTES + 2 * BLOCK_BYTES
    await eventually(
        lambda: all(file.stat().st_blocks * 512 <= max_bytes for file in folder.glob("*.log")), "the logs are short"
    )
    command = ("-m", "elasticflow", "logs", "flood", "--nats-url", pool.url, "--pool", POOL)
    logs = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--data-dir", str(pool.data_dir), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await logs.communicate()
    assert logs.returncode == 0
    lines = [line.partition(" | ")[2] for line in output.decode().splitlines()]
    numbers = [int(line) for line in lines if line.isdecimal()]
    assert numbers[-1] == NUM_ITERATIONS * 100_000 - 1
    first = next(line for line in lines if line.isdecimal())
    words = lines[0].split()
    assert words[2:] == ["bytes", "of", "older", "lines", "left", "out:", "their", "node", "freed", "them"]
    num_others = int(words[1].replace(",", "")) - int(first) * 100  # bytes that the worker wrote besides
    assert 0 <= num_others < 100_000
