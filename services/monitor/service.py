"""The monitor on the bus: it receives all telemetry, and keeps the gauges and the snapshot."""

import asyncio
import contextlib
import hashlib

from elasticflow.services.monitor.abandoned_loads import AbandonedLoads
from elasticflow.services.monitor.gauges import PoolGauges
from elasticflow.services.monitor.load_results import LoadResults
from elasticflow.services.monitor.model import State
from elasticflow.services.monitor.node_watch import NodeWatch
from elasticflow.services.monitor.old_objects import OldObjects
from elasticflow.services.monitor.policy import POLICY, with_cache
from elasticflow.services.monitor.settings import MonitorSettings
from elasticflow.services.monitor.slower_nodes import SlowerNodes
from elasticflow.services.monitor.tenant_views import TenantViews
from elasticflow.services.monitor.webhook import Webhook
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.runtime.bus.contract import Message
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import dead_letter_headers
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.compiled.warm_up import warm_up
from elasticflow.shared.scheduling.planning_cache import PlanningCache

SAVE_TIMEOUT_S = 10.0
DEAD_LETTER_TIMEOUT_S = 1.0
MAX_UNREADABLE = 64  # messages that wait for the dead-letter subject
SNAPSHOT_EVERY = 5_000  # messages of the ledger


async def serve(process: Process, settings: MonitorSettings | None = None) -> None:
    """Watch, until cancelled."""
    settings = settings or MonitorSettings(webhook_url="")
    unreadable = _Unreadable(process)
    node_watch = NodeWatch(process.bus, process.settings.pool, process.clock, process.log, on_unreadable=unreadable.add)

    async def beside(host: Host[State]) -> None:
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

    def add(self, message: Message, error: codec.Undecodable) -> None:
        self._process.metrics.refused_total.inc()
        with contextlib.suppress(asyncio.QueueFull):  # a flood is counted, not kept
            self._queue.put_nowait((message, error))

    async def dead_letter(self) -> None:
        """Keep unreadable messages on the dead-letter subject, in a task of its own: it must not delay heartbeats."""
        while True:
            message, error = await self._queue.get()
            self._process.log.warning("MessageRejected", subject=message.subject, problems=error.problems)
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

    def __init__(self, process: Process, host: Host[State]) -> None:
        self._process, self._host, self._pool = process, host, process.settings.pool
        self._gauges = PoolGauges(process.metrics)
        self._saved_at = host.folded.sequence
        self._slower_nodes = SlowerNodes(process.log)

    async def run(self) -> None:
        """At each heartbeat interval: update the gauges; sometimes save a snapshot."""
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
