"""The cost of an idle control plane."""

import asyncio
from typing import Any

from benchmarks.pipeline.cluster import Cluster

SERVICES = ("admission", "allocator", "placement", "monitor", "executor")


async def measure_idle(cluster: Cluster, *, seconds: float) -> dict[str, Any]:
    """CPU use of the five services and NATS, in percent of one core, with one node and no job."""
    pool = "idle"
    await cluster.bus.ensure_pool(pool)
    for service in SERVICES:
        await cluster.start(service, pool)
    await asyncio.sleep(5.0)  # start-up is over, the fork server has torch
    before = cluster.cpu_s()
    await asyncio.sleep(seconds)
    after = cluster.cpu_s()
    cluster.stop_services()
    percent = {name: 100.0 * (after[name] - before[name]) / seconds for name in after}
    return {"seconds": seconds, "cpu_percent": percent, "cpu_percent_total": sum(percent.values())}
