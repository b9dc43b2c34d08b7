"""From submissions to decisions: the time until a decision names the GPUs of each, and decisions per second of a burst.

Submit to placed: a simulated executor ends the jobs soon after they are placed, so the pool stays as busy as a shared
cluster and never fills up. Thousands of submissions in a burst are compared with raw JetStream publishes from Python.
"""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.pipeline.cluster import CLOCK, Cluster, append_event, as_bytes, submissions
from elasticflow.shared.messages import events, subjects
from elasticflow.shared.runtime.service.ledger_encoding import event_id, ledger_message

# --- submit to placed ----------------------------------------------------------------------------------


TRAINS_S = 0.6  # how long a placed job holds its GPUs


async def measure_latency(cluster: Cluster, *, rate_per_s: float, num_jobs: int) -> dict[str, Any]:
    """Latencies in ms at this rate of submissions, and the fsynced append that a submission cannot beat."""
    pool = "latency"
    await cluster.open_pool(pool, num_nodes=64, gpus_per_node=8)
    await cluster.start_planners(pool)
    appended_s = await _one_append_s(cluster, pool)
    run = _Run(cluster, pool)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(run.follow())
        await run.submit(rate_per_s, num_jobs)
        await asyncio.wait_for(run.all_decided.wait(), 60)
        await asyncio.gather(*run.ending)
        following.cancel()
    cluster.stop_services()
    placed_ms = 1e3 * np.array([run.placed_s[j] - run.sent_s[j] for j in run.placed_s])
    at_once_ms = 1e3 * np.array([run.placed_s[j] - run.sent_s[j] for j in run.placed_s if j not in run.waited])
    answered_ms = 1e3 * np.array([run.answered_s[j] - run.sent_s[j] for j in run.answered_s])
    return {
        "rate_per_s": rate_per_s,
        "submissions": num_jobs,
        "placed": len(placed_ms),
        "rejected": run.rejected,
        "append_fsync_p50_ms": 1e3 * appended_s,
        "submit_to_decided_p50_ms": float(np.percentile(answered_ms, 50)),
        "submit_to_decided_p99_ms": float(np.percentile(answered_ms, 99)),
        "submit_to_placed_p50_ms": float(np.percentile(placed_ms, 50)),
        "submit_to_placed_p99_ms": float(np.percentile(placed_ms, 99)),
        "waited_for_gpus": len(run.waited),
        "at_once_submit_to_placed_p50_ms": float(np.percentile(at_once_ms, 50)),
        "at_once_submit_to_placed_p99_ms": float(np.percentile(at_once_ms, 99)),
        "placed_p50_in_appends": float(np.percentile(placed_ms, 50)) / (1e3 * appended_s),
    }


async def _one_append_s(cluster: Cluster, pool: str) -> float:
    """Median time of one fsynced append, alone: the unit of everything here."""
    taken: list[float] = []
    loop = asyncio.get_running_loop()
    for number in range(200):
        started = loop.time()
        await cluster.bus.append(subjects.dead_letter(pool, "bench"), b"x" * 300, message_id=f"append-{number}")
        taken.append(loop.time() - started)
    return float(np.median(taken))


class _Run:
    def __init__(self, cluster: Cluster, pool: str) -> None:
        self._cluster, self._pool = cluster, pool
        self.sent_s: dict[str, float] = {}
        self.answered_s: dict[str, float] = {}
        self.placed_s: dict[str, float] = {}
        self.rejected = 0
        self.waited: set[str] = set()  # promised a start later than at once: their GPUs were still held
        self._unallocated: set[str] = set()
        self._expected: int | None = None
        self.all_decided = asyncio.Event()
        self.ending: set[asyncio.Task[None]] = set()

    async def submit(self, rate_per_s: float, num_jobs: int) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        sending: list[asyncio.Task[None]] = []
        for number, command in enumerate(submissions(num_jobs, longest_s=60.0)):
            await asyncio.sleep(max(0.0, started + number / rate_per_s - loop.time()))
            data = as_bytes(command, CLOCK.now_s())
            self.sent_s[command.job_id] = loop.time()
            sending.append(asyncio.create_task(self._send(command.job_id, data)))
        await asyncio.gather(*sending)
        self._expected = num_jobs
        self._check()

    async def _send(self, job_id: str, data: bytes) -> None:
        await self._cluster.bus.append(subjects.submit("bench", self._pool), data, message_id=f"submit-{job_id}")

    async def follow(self) -> None:
        loop = asyncio.get_running_loop()
        async for batch in self._cluster.bus.follow(self._pool, after_sequence=0):
            for stored in batch:
                message = ledger_message(stored.subject, stored.data)
                if isinstance(message, events.PlanDecided):
                    self._decided(message, loop.time())
            self._check()

    def _decided(self, decision: events.PlanDecided, at_s: float) -> None:
        for event in decision.events:
            match event:
                case events.JobAdmitted():
                    self.answered_s[event.job_id] = at_s
                    self._unallocated.add(event.job_id)
                case events.AllocationDecided():
                    self.waited |= {j for j in self._unallocated if not event.num_gpus_by_job.get(j)}
                    self._unallocated.clear()
                case events.JobRejected():
                    self.answered_s[event.job_id] = at_s
                    self.rejected += 1
                case events.PlacementDecided():
                    for placed in event.placements:
                        if placed.gpus and placed.job_id not in self.placed_s:
                            self.placed_s[placed.job_id] = at_s
                            ending = asyncio.create_task(self._end(placed))
                            self.ending.add(ending)
                            ending.add_done_callback(self.ending.discard)
                case _:
                    pass

    async def _end(self, placed: events.PlacedJob) -> None:
        await asyncio.sleep(TRAINS_S)
        finished = events.JobFinished(
            job_id=placed.job_id,
            generation=placed.generation,
            iteration=1,
            condition="max_iterations",
            at_s=CLOCK.now_s(),
        )
        subject = subjects.job(self._pool, placed.job_id)
        await append_event(self._cluster.bus, subject, finished, event_id(finished))

    def _check(self) -> None:
        if self._expected is not None and len(self.placed_s) + self.rejected >= self._expected:
            self.all_decided.set()


# --- a burst -------------------------------------------------------------------------------------------


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
