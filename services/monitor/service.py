"""The monitor on the bus: it receives all telemetry, and keeps the gauges and the snapshot."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from elasticflow.services.monitor.gauges import PoolGauges
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
from elasticflow.shared.runtime.process.settings import Reader
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import dead_letter_headers
from elasticflow.shared.runtime.service.refusal_log import COUNTED_S, RefusalLog
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.code_in_use import code_digests

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
