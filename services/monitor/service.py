"""The monitor on the bus: it receives all telemetry, and keeps the gauges and the snapshot."""

import asyncio
import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from elasticflow.services.monitor.load_results import AbandonedLoads, LoadResults
from elasticflow.services.monitor.model import MonitorState
from elasticflow.services.monitor.node_watch import NodeWatch, SlowerNodes
from elasticflow.services.monitor.policy import POLICY, with_cache
from elasticflow.services.monitor.tenant_views import TenantViews
from elasticflow.services.monitor.webhook import TOLD, Webhook
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Message
from elasticflow.shared.runtime.process.logs import COUNTED_S, RefusalLog
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Reader
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import dead_letter_headers
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.allocation.allocation import IdleCause, idle_gpus
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.code_in_use import code_digests
from elasticflow.shared.state.finish_time import margin_s, speed_now
from elasticflow.shared.state.pool import PoolState, num_gpus_by_type, slow_gpus_at
from elasticflow.shared.state.promise import Promise, promise_of

# --- old objects ---------------------------------------------------------------------------------------
# Deletes what is old in the pool's buckets: code that no job needs any more, snapshots of versions that no longer
# run, and what jobs have produced (docs/adr/0062, 0065).

SWEEP_EVERY_S = 3_600.0


class OldObjects:
    """Every monitor may do this: what is deleted twice is gone once."""

    def __init__(self, process: Process, host: Host[MonitorState]) -> None:
        self._bus, self._pool, self._log, self._host = process.bus, process.settings.pool, process.log, host

    async def run(self) -> None:
        """Sweep until cancelled. It is known which jobs are live only once the ledger is folded."""
        await self._host.ready.wait()
        while True:
            try:
                await self.sweep()
            except ElasticFlowError as error:
                self._log.warning("old objects not deleted", error=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Delete what is old now, by the clock of NATS. Raises ElasticFlowError."""
        config, now_s = self._host.folded.config, (await self._bus.ledger_end(self._pool)).at_s
        num_deleted = 0
        if (kept_s := config.code_kept_s) is not None:
            num_deleted += await self._delete(streams.code_bucket(self._pool), now_s - kept_s, self._is_code_in_use)
            snapshots = streams.snapshot_bucket(self._pool)
            epoch = await snapshot_store.newest_epoch(self._bus, self._pool)
            saved = await snapshot_store.newest_saved(self._bus, self._pool)
            of_epoch = () if epoch is None else (snapshot_store.epoch_object(epoch.began.snapshot),)
            newest = () if saved is None else (snapshot_store.saved_object(saved.snapshot),)
            needed = {TOLD, *newest, *of_epoch}
            num_deleted += await self._delete(snapshots, now_s - kept_s, needed.__contains__)
        if (kept_s := config.artifacts_kept_s) is not None:
            num_deleted += await self._delete(streams.artifact_bucket(self._pool), now_s - kept_s, lambda _: False)
        if num_deleted:
            self._log.info("ObjectsDeleted", num_objects=num_deleted)

    async def _delete(self, bucket: str, before_s: float, is_needed: Callable[[str], bool]) -> int:
        return await self._bus.delete_old_objects(bucket, before_s=before_s, is_needed=is_needed)

    def _is_code_in_use(self, name: str) -> bool:
        return any(name == streams.code_name(*used) for used in code_digests(self._host.folded))


# --- Settings of the monitor beside those of every service ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """The monitor also reads these."""

    webhook_url: str  # EF_WEBHOOK_URL: receives a POST when a job ends, is at risk, or its promise is broken; a secret

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "MonitorSettings":
        """Raises BadSettings. The message does not contain the URL: it may hold a secret."""
        read = Reader(os.environ if environment is None else environment)
        url = read.text("EF_WEBHOOK_URL", "")
        if url and not _is_usable(url):
            read.reject("EF_WEBHOOK_URL: must be http://host[:port]/path or https://..., without user or password")
        read.check()
        return cls(webhook_url=url)


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return plain and has_port and parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


# --- service -------------------------------------------------------------------------------------------

SAVE_TIMEOUT_S = 10.0
DEAD_LETTER_TIMEOUT_S = 1.0
MAX_UNREADABLE = 64  # messages that wait for the dead-letter subject
SNAPSHOT_EVERY = 5_000  # messages of the ledger


async def serve(process: Process, settings: MonitorSettings | None = None) -> None:
    """Watch, until cancelled."""
    settings = settings or MonitorSettings(webhook_url="")
    unreadable = _Unreadable(process)
    node_watch = NodeWatch(process.bus, process.settings.pool, process.clock, process.log, on_unreadable=unreadable.add)

    async def beside(host: Host[MonitorState]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(node_watch.run(host), name="node-watch")
            housekeeping = {
                "dead-letter": unreadable.dead_letter,
                "upkeep": _Upkeep(process, host).run,
                "results of loads": LoadResults(process, host).run,
                "abandoned loads": AbandonedLoads(process, host).run,
                "old objects": OldObjects(process, host).run,
                "views of tenants": TenantViews(process, host).run,
            }
            if settings.webhook_url:
                housekeeping["webhook"] = Webhook(process, host, settings.webhook_url).run
            for name, work in housekeeping.items():
                tasks.create_task(process.keep_up(name, work), name=name)

    policy = with_cache(PlanningCache())
    await host_policy(process, policy, leads_by_lease=True, act=node_watch.act, prepare=warm_up, beside=beside)


class _Unreadable:
    """Messages among the telemetry that are no stored heartbeats."""

    def __init__(self, process: Process) -> None:
        self._process, self._pool = process, process.settings.pool
        self._queue: asyncio.Queue[tuple[Message, codec.Undecodable]] = asyncio.Queue(MAX_UNREADABLE)
        self._refusals = RefusalLog(process.log.warning)

    def add(self, message: Message, error: codec.Undecodable) -> None:
        subject, now_s = message.subject, self._process.clock.now_s()
        self._process.metrics.refused_total.inc()
        self._refusals.write("MessageRejected", subject, now_s, subject=subject, problems=error.problems)
        with contextlib.suppress(asyncio.QueueFull):  # a flood is counted, not kept
            self._queue.put_nowait((message, error))

    async def dead_letter(self) -> None:
        """Keep unreadable messages on the dead-letter subject, in a task of its own: it must not delay heartbeats."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(COUNTED_S):
                        message, error = await self._queue.get()
                    await self._keep(message, error)
                self._refusals.write_counts(self._process.clock.now_s())
        finally:
            self._refusals.close()

    async def _keep(self, message: Message, error: codec.Undecodable) -> None:
        digest = hashlib.blake2b(message.data, digest_size=10).hexdigest()
        with contextlib.suppress(ElasticFlowError, TimeoutError):  # telemetry is not worth waiting for
            await self._process.bus.append(
                subjects.dead_letter(self._pool, POLICY.service),
                message.data,
                message_id=f"dead-{self._pool}-{digest}",
                timeout_s=DEAD_LETTER_TIMEOUT_S,
                headers=dead_letter_headers(message.subject, error.problems),
            )


class _Upkeep:
    """The gauges, the snapshot, and a log line for each node whose GPU type is probably wrong."""

    def __init__(self, process: Process, host: Host[MonitorState]) -> None:
        self._process, self._host, self._pool = process, host, process.settings.pool
        self._gauges = PoolGauges(process.metrics)
        self._saved_at = host.folded.sequence
        self._slower_nodes = SlowerNodes(process.log)

    async def run(self) -> None:
        """Update the gauges at each heartbeat interval; sometimes save a snapshot."""
        try:
            while True:
                self._gauges.update(self._host.folded, self._process.clock.now_s())
                self._slower_nodes.report(self._host.folded)
                if self._host.folded.sequence - self._saved_at >= SNAPSHOT_EVERY:
                    await self._snapshot()
                await asyncio.sleep(self._host.folded.config.timeouts.heartbeat_interval_s)
        finally:
            if self._host.folded.sequence - self._saved_at >= SNAPSHOT_EVERY // 10:
                await self._snapshot()

    async def _snapshot(self) -> None:
        if (snapshot := self._host.snapshot()) is None:
            return
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await snapshot_store.save(self._process.bus, self._pool, snapshot, self._process.clock.now_s())
        except (ElasticFlowError, TimeoutError) as error:
            self._process.log.warning("snapshot not saved", error=str(error))
            return
        self._saved_at = snapshot.state.sequence
        self._process.log.info("snapshot saved", sequence=self._saved_at)


# --- gauges -------------------------------------------------------------------------------------------
# The pool in numbers for Prometheus.

MAX_JOBS = 500  # with time series of their own, so that Prometheus keeps a limited number
IDLE_WINDOW_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_600.0, 14_400.0, 86_400.0)


class PoolGauges:
    """Gauges of one pool; the series of a job end with it.

    Idle time counts from update to update, each with the causes at its end.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._nodes = metrics.gauge("ef_nodes_alive", "Nodes whose heartbeats arrive")
        self._gpus = metrics.gauge("ef_gpus", "GPUs of the nodes that are alive")
        self._gpus_used = metrics.gauge("ef_gpus_used", "GPUs that carry a worker")
        self._of_type = metrics.gauge_by("ef_gpus_by_type", "The same where types differ, by GPU type", "gpu_type")
        self._used_of_type = metrics.gauge_by(
            "ef_gpus_used_by_type", "GPUs that carry a worker where types differ, by GPU type", "gpu_type"
        )
        self._gpus_slow = metrics.gauge("ef_gpus_slow", "GPUs on which a worker was slower than its peers")
        self._gpus_idle = metrics.gauge_by("ef_gpus_idle", "GPUs on which no job is placed, by cause", "cause")
        self._idle_total = metrics.counter_by("ef_idle_gpu_seconds_total", "GPU-seconds without a job", "cause")
        self._windows = metrics.histogram("ef_idle_window_seconds", "Idle windows that ended", IDLE_WINDOW_S)
        self._num_windows: int | None = None
        self._updated_at_s: float | None = None
        self._jobs = metrics.gauge_by("ef_jobs", "Jobs by phase", "phase")
        self._promises = metrics.gauge_by("ef_promises", "Promised jobs by the state of their promise", "promise")
        self._num_gpus = metrics.gauge_by("ef_job_gpus", "GPUs of a live job", "job_id")
        self._rate = metrics.gauge_by("ef_job_iterations_per_second", "Measured speed of a live job", "job_id")
        self._margin = metrics.gauge_by("ef_job_margin_seconds", "Deadline less expected finish", "job_id")
        self._at_risk = metrics.gauge_by(
            "ef_job_at_risk", "1 for a live job that may miss its deadline or has", "job_id"
        )

    def update(self, pool: PoolState, now_s: float) -> None:
        """Set all gauges from the state."""
        live = pool.live_jobs.values()
        self._nodes.set(sum(node.alive for node in pool.nodes.values()))
        self._gpus.set(pool.num_gpus)
        self._gpus_used.set(sum(len(job.gpus) for job in live))
        self._update_types(pool)
        self._gpus_slow.set(len(slow_gpus_at(pool, now_s)))
        self._update_idle(pool, now_s)
        for gauge in (self._jobs, self._promises, self._num_gpus, self._rate, self._margin, self._at_risk):
            gauge.clear()
        jobs = (*live, *pool.ended_jobs.values())
        for phase, count in Counter(job.phase for job in jobs).items():
            self._jobs.set(phase.value, count)
        promises = Counter(promise_of(job, now_s) for job in jobs)
        for promise in Promise:
            if promise is not Promise.NONE:
                self._promises.set(promise.value, promises[promise])
        for job in sorted(live, key=lambda job: job.job_id)[:MAX_JOBS]:
            self._num_gpus.set(job.job_id, len(job.gpus))
            if (rate := speed_now(job, now_s)) is not None:
                self._rate.set(job.job_id, rate)
            if (left_s := margin_s(job, now_s)) is not None:
                self._margin.set(job.job_id, left_s)
            if promise_of(job, now_s) in (Promise.AT_RISK, Promise.BROKEN):
                self._at_risk.set(job.job_id, 1)

    def _update_types(self, pool: PoolState) -> None:
        by_type = num_gpus_by_type(pool)
        nodes = (pool.nodes.get(gpu.node_id) for job in pool.live_jobs.values() for gpu in job.gpus)
        used = Counter(node.gpu_type for node in nodes if node is not None and node.alive)
        for gauge in (self._of_type, self._used_of_type):
            gauge.clear()
        for gpu_type, num_gpus in by_type.items() if len(by_type) > 1 else ():
            self._of_type.set(gpu_type, num_gpus)
            self._used_of_type.set(gpu_type, used[gpu_type])

    def _update_idle(self, pool: PoolState, now_s: float) -> None:
        idle = idle_gpus(pool)
        elapsed_s = 0.0 if self._updated_at_s is None else max(now_s - self._updated_at_s, 0.0)
        for cause in IdleCause:
            self._gpus_idle.set(cause.value, idle.get(cause, 0))
            self._idle_total.add(cause.value, idle.get(cause, 0) * elapsed_s)
        num_windows = pool.idle_windows.num_ended
        for length_s in pool.idle_windows.ended_since(num_windows if self._num_windows is None else self._num_windows):
            self._windows.observe(length_s)
        self._num_windows, self._updated_at_s = num_windows, now_s
