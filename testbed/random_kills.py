"""Kill -9 of one process of a running pool."""

import contextlib

import numpy as np
import psutil

from testbed.real_pool import RunningPool, eventually

PROCESSES = {  # those that the supervisor does not know by name
    "fork server": RunningPool.fork_servers,
    "worker": RunningPool.workers,
    "another worker": RunningPool.workers,
    "runner": RunningPool.workers,  # in a pool without jobs
}


async def kill_one(pool: RunningPool, victim: str, rng: np.random.Generator) -> list[psutil.Process]:
    """What the victim had started, which has to follow it. Waits until there is such a process."""
    if victim not in PROCESSES:
        return await pool.kill(victim)
    while True:
        candidates = await eventually(lambda: PROCESSES[victim](pool), f"there is a {victim}")
        process = candidates[rng.integers(len(candidates))]
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended by itself
            orphans = process.children(recursive=True)
            process.kill()
            return orphans
