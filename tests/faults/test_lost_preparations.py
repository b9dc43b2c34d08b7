"""Nodes that end while they prepare a job lose no start of it: no code of the job has run there (docs/adr/0096)."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from testbed.real_pool import CONFIG, job, running_pool
from tests.support.wheels import make_wheel


@asynccontextmanager
async def index_of(wheel, released):
    """A page with this wheel, which answers once it is released. Yields its URL, and a queue with each request."""
    requests = asyncio.Queue()

    async def answer(reader, writer):
        path = (await reader.readline()).split()[1].decode()
        requests.put_nowait(path)
        await released.wait()
        body = wheel.read_bytes() if path.endswith(".whl") else f"<a href='/{wheel.name}'>{wheel.name}</a>".encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", requests


async def test_a_job_trains_after_two_executors_have_ended_that_installed_its_packages(tmp_path):
    make_wheel(tmp_path / "wheels", "ef_tiny", "1.5")
    (wheel,) = (tmp_path / "wheels").iterdir()
    released = asyncio.Event()
    config = replace(CONFIG, max_nodes_lost_at_start=PoolConfig().max_nodes_lost_at_start)
    async with (
        index_of(wheel, released) as (url, requests),
        running_pool(tmp_path, num_nodes=2, replicas={}, config=config) as pool,
    ):
        needs = job(requirements=("--no-index", f"--find-links {url}", "ef_tiny"), max_gpus=1, max_iterations=5)
        await pool.acknowledged(needs, "needs")
        num_lost = 0
        while num_lost < 2:
            await requests.get()
            state = await pool.when(lambda state: bool(state.live_jobs["needs"].gpus), "it is placed")
            job_before = state.live_jobs["needs"]
            (gpu,) = job_before.gpus
            await pool.kill(f"executor-{gpu.node_id}")
            state = await pool.when(
                lambda state, before=job_before: (
                    state.live_jobs["needs"].generation > before.generation
                    or state.live_jobs["needs"].gpus != before.gpus
                ),
                "it is placed anew",
            )
            # one that has not told yet what it prepares is no known loss
            num_lost = len(state.live_jobs["needs"].nodes_lost_in_preparation)
            assert state.live_jobs["needs"].nodes_lost_at_start == ()
        released.set()
        state = await pool.ended(["needs"])
        assert state.ended_jobs["needs"].phase is Phase.FINISHED, state.ended_jobs["needs"].error
        await pool.ledger()
