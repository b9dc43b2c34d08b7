"""The start of a service whose fold is new, on a long ledger that is divided into epochs.

`python -m benchmarks.pipeline.epochs 1000000 4` writes so many events in so many epochs, and prints one JSON object.
"""

import asyncio
import json
import sys
from typing import Any

import psutil

from benchmarks.pipeline.cluster import CLOCK, Cluster, running_cluster, submissions
from benchmarks.pipeline.rebuild import LIFE, rebuild, write_history
from elasticflow.client.archive_ledger import archive
from elasticflow.shared.runtime.process.logs import configure_logs, get_log
from elasticflow.shared.runtime.service import snapshot_store

POOL, EMPTY = "epochs", "empty"


async def measure_epochs(cluster: Cluster, *, num_events: int, num_epochs: int) -> dict[str, Any]:
    """Seconds and memory of a start without a snapshot of the own fold, after the last epoch was archived."""
    for pool in (POOL, EMPTY):
        await cluster.open_pool(pool, num_nodes=8, gpus_per_node=8)
    folder, loop = cluster.data_dir / "archives", asyncio.get_running_loop()
    archived_s, archived_bytes = 0.0, 0
    commands = submissions(num_events // LIFE)
    for number in range(num_epochs):
        await write_history(cluster, POOL, commands[number::num_epochs])
        started = loop.time()
        done = await archive(cluster.server.url, POOL, folder, CLOCK, delete=True, on_message=lambda number, of: None)
        archived_s, archived_bytes = archived_s + loop.time() - started, archived_bytes + done.num_bytes
    started = loop.time()
    snapshot = await snapshot_store.load(cluster.bus, POOL, get_log("benchmark"))
    assert snapshot is not None, "the epoch has a snapshot"
    restored = await rebuild(cluster, POOL, snapshot)
    return {
        "events": restored.state.sequence,
        "epochs": num_epochs,
        "start_s": loop.time() - started,
        "since_the_epoch": restored.state.sequence - snapshot.state.sequence,
        "archived_events_per_s": restored.state.sequence / archived_s,
        "bytes_per_archived_event": archived_bytes / restored.state.sequence,
        "allocator_mib": await _memory_mib(cluster, POOL),
        "allocator_of_an_empty_pool_mib": await _memory_mib(cluster, EMPTY),
    }


async def _memory_mib(cluster: Cluster, pool: str) -> float:
    """The memory of an allocator that has caught up."""
    await cluster.start("allocator", pool)
    (process,) = cluster.processes.values()
    used_bytes = psutil.Process(process.pid).memory_info().rss
    cluster.stop_services()
    return used_bytes / (1 << 20)


async def _measure(num_events: int, num_epochs: int) -> dict[str, Any]:
    async with running_cluster() as cluster:
        return await measure_epochs(cluster, num_events=num_events, num_epochs=num_epochs)


if __name__ == "__main__":
    configure_logs(level="error")
    print(json.dumps(asyncio.run(_measure(*map(int, sys.argv[1:]))), indent=2))
