"""A burst of thousands of submissions until their decisions, compared with raw JetStream publishes from Python."""

import asyncio
from dataclasses import replace
from typing import Any

from benchmarks.pipeline.cluster import CLOCK, Cluster
from benchmarks.pipeline.workload import as_bytes, submissions
from elasticflow.shared.messages import events, subjects
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message

PUBLISHERS = 64


async def raw_publishes_per_s(cluster: Cluster, num_messages: int) -> float:
    """Pipelined, fsynced JetStream publishes of submissions from one Python process, never decided."""
    pool = "raw"
    await cluster.bus.ensure_pool(pool)
    payloads = [as_bytes(command, CLOCK.now_s()) for command in submissions(num_messages)]
    return num_messages / await _publish(cluster, pool, payloads)


async def measure_burst(
    cluster: Cluster, *, num_jobs: int, pools: tuple[str, ...], admissions: int = 1, senders_wait: bool = True
) -> dict[str, Any]:
    """Decisions per second, from the first publish to the last decision. admissions: replicas for each pool.

    senders_wait: or else rejections have no counteroffers.
    """
    for pool in pools:
        await cluster.open_pool(pool, num_nodes=8, gpus_per_node=8)
        await cluster.start_planners(pool, admissions=admissions)
    share = num_jobs // len(pools)
    payloads = [
        [as_bytes(replace(each, sender_waits=senders_wait), CLOCK.now_s()) for each in submissions(share, prefix=pool)]
        for pool in pools
    ]
    loop = asyncio.get_running_loop()
    started = loop.time()
    counting = [asyncio.create_task(_count_decisions(cluster, pool, share)) for pool in pools]
    await asyncio.gather(*(_publish(cluster, pool, data) for pool, data in zip(pools, payloads, strict=True)))
    published_s = loop.time() - started
    counts = await asyncio.wait_for(asyncio.gather(*counting), 300)
    decided_s = loop.time() - started
    cluster.stop_services()
    return {
        "submissions": share * len(pools),
        "pools": len(pools),
        "admissions_per_pool": admissions,
        "senders_wait": senders_wait,
        "admitted": sum(admitted for admitted, _ in counts),
        "rejected": sum(rejected for _, rejected in counts),
        "publish_s": published_s,
        "decided_s": decided_s,
        "decisions_per_s": share * len(pools) / decided_s,
    }


async def _publish(cluster: Cluster, pool: str, payloads: list[bytes]) -> float:
    """Publish all, PUBLISHERS at a time; the seconds it took."""
    loop = asyncio.get_running_loop()
    started, subject, waiting = loop.time(), subjects.submit("bench", pool), iter(enumerate(payloads))

    async def publisher() -> None:
        for number, data in waiting:
            await cluster.bus.append(subject, data, message_id=f"{pool}-{number}", timeout_s=60.0)

    await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))
    return loop.time() - started


async def _count_decisions(cluster: Cluster, pool: str, expected: int) -> tuple[int, int]:
    admitted = rejected = 0
    async for batch in cluster.bus.follow(pool, after_sequence=0):
        for stored in batch:
            message = ledger_message(stored.subject, stored.data)
            if isinstance(message, events.PlanDecided) and message.service == "admission":
                admitted += sum(isinstance(event, events.JobAdmitted) for event in message.events)
                rejected += sum(isinstance(event, events.JobRejected) for event in message.events)
        if admitted + rejected >= expected:
            break
    return admitted, rejected
