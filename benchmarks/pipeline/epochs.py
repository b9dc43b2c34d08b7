"""The start of a service: from the first of 100,000 events, from a snapshot, and on a long ledger in epochs.

`python -m benchmarks.pipeline.epochs 1000000 4` writes so many events in so many epochs, starts a service whose fold is
new, and prints one JSON object.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psutil

from benchmarks.pipeline.cluster import CLOCK, Cluster, running_cluster, submissions
from elasticflow.client.archive_ledger import archive
from elasticflow.services.allocator.policy import POLICY
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.logs import configure_logs, get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.runtime.service.snapshot_store import Snapshot

# --- from events, and from a snapshot ------------------------------------------------------------------


WRITERS = 256
LIFE = 20  # messages of one job


async def measure_rebuild(cluster: Cluster, *, num_events: int) -> dict[str, Any]:
    """Seconds from nothing, and from a snapshot, to a folded state of num_events messages."""
    pool = "rebuild"
    await cluster.open_pool(pool, num_nodes=8, gpus_per_node=8)
    await write_history(cluster, pool, submissions(num_events // LIFE))
    loop = asyncio.get_running_loop()
    started = loop.time()
    folded = await rebuild(cluster, pool, None)
    from_events_s = loop.time() - started
    await snapshot_store.save(cluster.bus, pool, folded, CLOCK.now_s())
    started = loop.time()
    restored = await rebuild(cluster, pool, await snapshot_store.load(cluster.bus, pool, get_log("benchmark")))
    from_snapshot_s = loop.time() - started
    saved_at = folded.state.sequence + 1  # the message that names the snapshot changes nothing else
    assert restored.state == replace(folded.state, sequence=saved_at), "a snapshot must restore exactly what was folded"
    return {
        "events": folded.state.sequence,
        "jobs": len(folded.state.live_jobs) + len(folded.state.ended_jobs),
        "from_events_s": from_events_s,
        "from_snapshot_s": from_snapshot_s,
        "events_per_s": folded.state.sequence / from_events_s,
    }


async def rebuild(cluster: Cluster, pool: str, snapshot: Snapshot | None) -> Snapshot:
    """What a starting service does until it may decide."""
    host = Host(
        ServiceContext(
            bus=cluster.bus,
            pool=pool,
            clock=CLOCK,
            instance="benchmark",
            log=get_log("benchmark"),
            metrics=Metrics("benchmark", pool),
        ),
        POLICY,
        leads=lambda: False,
        snapshot=snapshot,
    )
    running = asyncio.create_task(host.run())
    while host.unwell() is not None:
        await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    snapshot = host.snapshot()
    assert snapshot is not None, "the ledger was changed"
    return snapshot


async def write_history(cluster: Cluster, pool: str, commands: Sequence[SubmitJob]) -> None:
    """Whole lives of these jobs, written by many at once."""
    waiting = iter(commands)

    async def writer() -> None:
        for command in waiting:
            for number, message in enumerate(_life(command.job_id, command.tenant, command.spec)):
                decided = isinstance(message, events.PlanDecided)
                subject = subjects.plan(pool) if decided else subjects.job(pool, command.job_id)
                message_id = f"{command.job_id}-{number}"
                data = codec.encode(message, id=message_id, recorded_at_s=CLOCK.now_s())
                await cluster.bus.append(subject, data, message_id=message_id, timeout_s=60.0)

    await asyncio.gather(*(writer() for _ in range(WRITERS)))


def _life(job_id: str, tenant: str, spec: JobSpec) -> list[codec.Message]:
    """Admitted, placed, started, progress, finished, stopped: LIFE messages, each of which the fold has to apply.

    A job whose workers have not stopped stays in the state for as long.
    """
    now_s = CLOCK.now_s()
    admitted = events.JobAdmitted(
        job_id=job_id,
        tenant=tenant,
        spec=spec,
        deadline_s=now_s + 600,
        minimum_satisfactory_share=(),
        gpu_seconds=60.0,
        at_s=now_s,
    )
    node_id = f"node-{sum(job_id.encode()) % 8:03}"
    gpus = (GpuId(node_id, 0),)
    placed = events.PlacementDecided(
        placements=(events.PlacedJob(job_id=job_id, generation=1, gpus=gpus),), migrated=(), at_s=now_s
    )
    started = events.GenerationStarted(job_id=job_id, generation=1, num_gpus=1, iteration=0, at_s=now_s)
    progress = [
        events.JobProgressed(
            job_id=job_id,
            generation=1,
            iteration=step + 1,
            iterations_per_s=5.0,
            metrics={"loss": 1.0 / (step + 1)},
            at_s=now_s + step,
        )
        for step in range(LIFE - 5)
    ]
    finished = events.JobFinished(
        job_id=job_id, generation=1, iteration=100, condition="max_iterations", at_s=now_s + LIFE
    )
    stopped = events.WorkersStopped(job_id=job_id, generation=1, node_id=node_id, at_s=now_s + LIFE)
    return [
        events.PlanDecided(service="admission", based_on=0, now_s=now_s, events=(admitted,)),
        events.PlanDecided(service="placement", based_on=0, now_s=now_s, events=(placed,)),
        started,
        *progress,
        finished,
        stopped,
    ]


# --- a ledger that is divided into epochs --------------------------------------------------------------


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
