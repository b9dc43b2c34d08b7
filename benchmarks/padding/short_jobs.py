"""Short promised jobs that take one idle slot after another from padding loads."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

from testbed.real_pool import RunningPool, job

_ITERATIONS = 10  # of 20 ms


@contextlib.asynccontextmanager
async def short_jobs(pool: RunningPool, name: str, gaps_s: Iterable[float]) -> AsyncIterator[asyncio.Task[None]]:
    """A job on one slot after each gap, which begins with the end of the job before; ends early with the block."""
    jobs = asyncio.create_task(_submit(pool, name, gaps_s))
    try:
        yield jobs
    finally:
        jobs.cancel()
        await asyncio.wait({jobs})


async def _submit(pool: RunningPool, name: str, gaps_s: Iterable[float]) -> None:
    for number, gap_s in enumerate(gaps_s):
        await asyncio.sleep(gap_s)
        job_id = f"{name}-{number}"
        await pool.acknowledged(job(max_gpus=1, max_iterations=_ITERATIONS), job_id)
        await pool.ended([job_id])
