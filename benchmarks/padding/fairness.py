"""Three tenants with backlogged loads on two slots: how equally they share the GPU time."""

import asyncio
import contextlib
import time

import numpy as np

from benchmarks.padding.loaded_pool import Backlog, backlogged, loaded_pool
from benchmarks.report import Measured, Row

_TASK_S = 0.05
_TENANTS = ("ada", "ben", "cleo")


async def measure_fairness(*, num_windows: int, window_s: float) -> Measured:
    """Jain's index of the tenants' GPU seconds in each window. A task counts when its result arrives."""
    async with loaded_pool() as pool, contextlib.AsyncExitStack() as loads:
        # enough for the first load alone until all have begun, also on a slow machine
        num_tasks = int(10 * num_windows * window_s / _TASK_S)
        backlogs: list[Backlog] = [
            await loads.enter_async_context(
                backlogged(pool, "rest", _TASK_S, load_id=f"of-{tenant}", num_tasks=num_tasks, tenant=tenant)
            )
            for tenant in _TENANTS
        ]
        bounds_s = time.monotonic() + window_s * np.arange(num_windows + 1)
        await asyncio.sleep(num_windows * window_s)
    gpu_s_TW = np.array([_in_windows(backlog, bounds_s) for backlog in backlogs])  # tenants T, windows W
    jain_W = gpu_s_TW.sum(0) ** 2 / (len(_TENANTS) * (gpu_s_TW**2).sum(0))
    return {
        "window_s": window_s,
        "gpu_s": {tenant: gpu_s.tolist() for tenant, gpu_s in zip(_TENANTS, gpu_s_TW, strict=True)},
        "jain": jain_W.tolist(),
        "least_jain": float(jain_W.min()),
    }


def _in_windows(backlog: Backlog, bounds_s: np.ndarray) -> np.ndarray:
    arrived_s, task_s = np.array(backlog.gpu_s).T
    return np.histogram(arrived_s, bins=bounds_s, weights=task_s)[0]


def rows(measured: Measured) -> list[Row]:
    shares = ", ".join(f"{tenant} {sum(gpu_s):.1f} s" for tenant, gpu_s in measured["gpu_s"].items())
    what = f"Jain's index of three tenants, worst of {len(measured['jain'])} windows of {measured['window_s']:g} s"
    return [Row(what, f"{measured['least_jain']:.4f}", "", shares)]
