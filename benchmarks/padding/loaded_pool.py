"""A real pool with CPU slots, and loads of which the calling benchmark is the client."""

import asyncio
import contextlib
import itertools
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import elasticflow
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.process.clock import SystemClock
from testbed.real_pool import POOL, RunningPool, running_pool

CLOCK = SystemClock()
_FUNCTIONS = "benchmarks.padding.task_functions"


@contextlib.asynccontextmanager
async def loaded_pool(*, num_nodes: int = 1) -> AsyncIterator[RunningPool]:
    """Nodes of two CPU slots, in a folder of their own; everything is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ef-bench-") as folder:
        async with running_pool(Path(folder), num_nodes=num_nodes, replicas={}) as pool:
            yield pool


async def mapped(
    pool: RunningPool, function: Callable[[Any], Any], inputs: Iterable[Any], *, load_id: str, **options: Any
) -> tuple[list[Any], float]:
    """The results of `elasticflow.map`, and how many seconds it took. In another thread, as a script would."""

    def run() -> list[Any]:
        settings = {"nats_url": pool.url, "pool": POOL, "tenant": "lab", "load_id": load_id}
        return list(elasticflow.map(function, inputs, **settings, **options))

    began_s = time.perf_counter()
    results = await asyncio.to_thread(run)
    return results, time.perf_counter() - began_s


class Backlog:
    """gpu_s: seconds of the tasks whose results have arrived, each with the time of its arrival (`time.monotonic`)."""

    def __init__(self) -> None:
        self.gpu_s = list[tuple[float, float]]()
        self.begun = asyncio.Event()  # there is a result

    async def follow(
        self, pool: RunningPool, function: str, task_input: float, *, load_id: str, num_tasks: int, tenant: str
    ) -> None:
        """Open the load and read its results, until cancelled. function: of `task_functions`."""
        client = Client(pool.bus, Endpoint(nats_url=pool.url, pool=POOL), tenant=tenant, clock=CLOCK)
        spec = LoadSpec(task_function=f"{_FUNCTIONS}:{function}", task_s=task_input)
        results = client.results_of(itertools.repeat(task_input, num_tasks), spec, load_id=load_id)
        async with contextlib.aclosing(results):
            async for result in results:
                self.gpu_s.append((time.monotonic(), result.task_s))
                self.begun.set()


@contextlib.asynccontextmanager
async def backlogged(
    pool: RunningPool, function: str, task_input: float, *, load_id: str, num_tasks: int, tenant: str = "lab"
) -> AsyncIterator[Backlog]:
    """A load with more tasks than the block has time for, from its first result on; cancelled afterwards.

    task_input: of each task, and its seconds.
    """
    backlog = Backlog()
    following = asyncio.create_task(
        backlog.follow(pool, function, task_input, load_id=load_id, num_tasks=num_tasks, tenant=tenant)
    )
    begun = asyncio.create_task(backlog.begun.wait())
    try:
        await asyncio.wait({following, begun}, return_when=asyncio.FIRST_COMPLETED)
        assert backlog.begun.is_set(), following.exception()
        yield backlog
        assert not following.done(), f"{load_id} has too few tasks"
    finally:
        begun.cancel()
        following.cancel()
        await asyncio.wait({begun, following})
    await pool.when(lambda state: not state.loads[load_id].live, f"{load_id} is cancelled")
