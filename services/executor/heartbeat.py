"""Heartbeats, and the lease of the workers: they run only while NATS acknowledges the heartbeats of this executor.

An acknowledged heartbeat is stored by a majority of the NATS servers, and no other executor and no fence has replaced
the one before (`node_record`). It extends the leases of the workers to `lease_s` after it was sent. Later this executor
kills them; if it is stopped, stuck or starved, they end themselves at that time. The monitor counts a node as lost no
sooner than `heartbeat_timeout_s` after its last stored heartbeat was sent, and only once a fence has replaced that
heartbeat (docs/adr/0038).
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from elasticflow.services.executor.decisions.local_events_and_actions import ContactLost, ContactRestored, NodeClaimed
from elasticflow.services.executor.decisions.state import PoolMembership, State, node_report
from elasticflow.shared.errors import BadSettings, Retry, TooLarge, WrongExpectedSequence
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.events import NodeFenced, NodeReported
from elasticflow.shared.messages.events.nodes import GpuReport, KnownStarts, Starts
from elasticflow.shared.messages.timeouts import FailureTimeouts, takeover_s
from elasticflow.shared.runtime.bus.contract import Bus, Value
from elasticflow.shared.runtime.bus.streams import node_bucket
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service.host import Host

# --- node record ---------------------------------------------------------------------------------------
# The record of this node on the bus: its last heartbeat. One executor at a time writes it.
#
# Each write is a compare-and-set, and NATS acknowledges it once a majority of its servers has stored it. So neither a
# stale leader nor a second executor of the same node id can extend a lease. The first heartbeat of an incarnation
# claims the record: it waits until the workers of the executor that wrote the record before have no lease any more.

_MAX_FOREIGN_WRITES = 1  # during a claim: a heartbeat that was on its way when its executor ended


class NodeRecord:
    """run_id: of this executor. previous_run_id: of the executor before it on this machine, whose workers have
    ended; "" if unknown. boot_s: the clock of the leases.
    """

    def __init__(
        self, bus: Bus, pool: str, node_id: str, *, run_id: str, previous_run_id: str, boot_s: Callable[[], float]
    ) -> None:
        self._bus, self._bucket, self._node_id, self._boot_s = bus, node_bucket(pool), node_id, boot_s
        self._ended_run_ids = {run_id, previous_run_id} - {""}
        self._incarnation = ""  # the claimed one
        self.replaced = ""  # the incarnation whose heartbeat its first one has replaced, sent at replaced_heard_s
        self.replaced_heard_s: float | None = None
        self.replaced_starts: Starts = None  # named in that heartbeat
        self.replaced_preparations: KnownStarts = ()
        self._revision = 0
        self._is_uncertain = False  # whether the last heartbeat was stored
        self._foreign_data = b""
        self._foreign_since_s = 0.0
        self._num_foreign_writes = 0

    def num_replies(self, incarnation: str) -> int:
        """The number of replies of the bus that `store` waits for: one, unless it must read the record first."""
        return 2 if self._is_uncertain or incarnation != self._incarnation else 1

    async def store(self, heartbeat: NodeReported) -> bool:
        """Whether the heartbeat is stored. False: another executor's workers may run, or this incarnation is over.

        Raises BadSettings if another executor of this node id is alive, and Retry.
        """
        data = codec.encode(heartbeat, id="", recorded_at_s=heartbeat.at_s)
        try:
            if heartbeat.incarnation == self._incarnation:
                return await self._renew(data)
            return await self._claim(heartbeat, data)
        except WrongExpectedSequence:
            return False

    async def _renew(self, data: bytes) -> bool:
        if self._is_uncertain:
            record = await self._read()
            message = _message(record)
            if record is None or not isinstance(message, NodeReported) or message.incarnation != self._incarnation:
                return False
            self._revision = record.revision
        await self._write(data, self._revision)
        return True

    async def _claim(self, heartbeat: NodeReported, data: bytes) -> bool:
        record = await self._read()
        if record is not None and not self._has_ended(record, heartbeat.lease_s):
            return False
        message = _message(record)
        await self._write(data, record.revision if record is not None else 0)
        self._incarnation = heartbeat.incarnation
        self.replaced, self.replaced_heard_s = "", None
        self.replaced_starts, self.replaced_preparations = None, ()
        if isinstance(message, NodeReported):
            self.replaced, self.replaced_heard_s = message.incarnation, message.at_s
            self.replaced_starts, self.replaced_preparations = message.starts, message.preparations
        return True

    def _has_ended(self, record: Value, lease_s: float) -> bool:
        """Whether no worker of the executor that wrote this record runs. lease_s: if the record does not tell."""
        message = _message(record)
        if isinstance(message, NodeFenced):
            return True
        if isinstance(message, NodeReported):
            if message.incarnation.rpartition("-")[0] in self._ended_run_ids:
                return True
            lease_s = message.lease_s
        if record.data != self._foreign_data:  # the monitor may write the same again: that extends no lease
            self._num_foreign_writes += self._foreign_data != b""
            if self._num_foreign_writes > _MAX_FOREIGN_WRITES:
                problem = "another executor of this name is alive: stop it, or give this one another name"
                raise BadSettings((f"EF_NODE_ID={self._node_id!r}: {problem}",))
            self._foreign_data, self._foreign_since_s = record.data, self._boot_s()
        return self._boot_s() - self._foreign_since_s > takeover_s(lease_s)

    async def _read(self) -> Value | None:
        return await self._bus.get_value(self._bucket, self._node_id)

    async def _write(self, data: bytes, expected_revision: int) -> None:
        self._is_uncertain = True
        self._revision = await self._bus.put_value(
            self._bucket, self._node_id, data, expected_revision=expected_revision
        )
        self._is_uncertain = False


def _message(record: Value | None) -> codec.Message | None:
    """The message in the record; None without a record, or if it is unreadable."""
    return codec.message_or_none(record.data) if record is not None else None


# --- heartbeat -----------------------------------------------------------------------------------------


class Workers(Protocol):
    """All workers of this node; in production `manager.WorkerManager`.

    preparing: jobs for which this node installs packages before it starts workers.
    """

    @property
    def preparing(self) -> tuple[str, ...]: ...
    def preparations(self, starts: KnownStarts) -> KnownStarts:
        """Those of these starts, which are all that matter, of which no worker has run."""
        ...

    def kill_all(self) -> None: ...
    def extend_leases(self, until_s: float) -> None: ...


class Heartbeat:
    """boot_s: the clock of the leases. gpu_reports: how the GPUs are used, as far as known."""

    def __init__(
        self,
        host: Host[State],
        bus: Bus,
        pool: str,
        clock: Clock,
        log: Any,
        workers: Workers,
        *,
        boot_s: Callable[[], float],
        previous_run_id: str = "",
        gpu_reports: Callable[[], tuple[GpuReport, ...]] = tuple,
    ) -> None:
        self._gpu_reports = gpu_reports
        self._host, self._bus, self._pool, self._clock, self._log = host, bus, pool, clock, log
        self._workers, self._boot_s = workers, boot_s
        specification = host.state.node_specification
        self._record = NodeRecord(
            bus,
            pool,
            specification.node_id,
            run_id=specification.run_id,
            previous_run_id=previous_run_id,
            boot_s=boot_s,
        )
        self._lease_until_s = math.inf  # inf: no heartbeat was acknowledged yet
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []  # for the next stored heartbeat

    async def run(self) -> None:
        """Send heartbeats and enforce the lease until cancelled.

        Raises BadSettings (in a group) if another executor of this node id is alive.
        """
        await self._host.ready.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_heartbeats(), name="heartbeats")
            tasks.create_task(self._enforce_lease(), name="lease")

    async def stored(self) -> None:
        """Return once a heartbeat is stored that is made after this call, soon. It names the starts up to now."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._wanted.set()
        await waiting

    @property
    def _timeouts(self) -> FailureTimeouts:
        return self._host.folded.config.timeouts

    async def _send_heartbeats(self) -> None:
        while True:
            sent_s, num_replies = self._boot_s(), self._record.num_replies(self._host.state.incarnation)
            waiting, self._waiting, is_stored = self._waiting, [], False
            self._wanted.clear()
            try:
                async with asyncio.timeout(num_replies * self._timeouts.bus_reply_timeout_s):
                    is_stored = await self._send(sent_s)
            except (Retry, TimeoutError) as error:
                self._log.debug("heartbeat not acknowledged", error=str(error))
            next_s = sent_s + self._timeouts.heartbeat_interval_s
            pause_s = max(self._timeouts.poll_interval_s, next_s - self._boot_s())
            if not is_stored:
                self._waiting = waiting + self._waiting
                await asyncio.sleep(pause_s)
                continue
            for each in waiting:
                if not each.done():  # its caller may have been cancelled
                    each.set_result(None)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause_s)

    async def _send(self, sent_s: float) -> bool:
        """Whether it is stored."""
        state = self._host.state
        if state.shutting_down and state.membership is not PoolMembership.MEMBER:
            return False  # claim no further incarnation
        heartbeat = self._made(state, with_metrics=True)
        try:
            is_stored = await self._record.store(heartbeat)
        except TooLarge as error:  # what jobs report must not end the node
            self._log.warning("HeartbeatWithoutMetrics", error=str(error))
            heartbeat = self._made(state, with_metrics=False)
            is_stored = await self._record.store(heartbeat)
        if not is_stored:
            return False
        self._lease_until_s = sent_s + heartbeat.lease_s
        self._workers.extend_leases(self._lease_until_s)
        if state.claimed != heartbeat.incarnation:
            self._host.note(
                NodeClaimed(
                    incarnation=heartbeat.incarnation,
                    replaced=self._record.replaced,
                    replaced_heard_s=self._record.replaced_heard_s,
                    replaced_starts=self._record.replaced_starts,
                    replaced_preparations=self._record.replaced_preparations,
                )
            )
        return True

    def _made(self, state: State, *, with_metrics: bool) -> NodeReported:
        report = node_report(state, self._clock.now_s(), with_metrics=with_metrics)
        preparations = self._workers.preparations(report.starts or ())
        gpus = self._gpu_reports() if with_metrics else ()
        return replace(report, preparing=self._workers.preparing, preparations=preparations, gpus=gpus)

    async def _enforce_lease(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.poll_interval_s)
            if self._boot_s() > self._lease_until_s:
                await self._wait_without_workers(self._lease_until_s)

    async def _wait_without_workers(self, until_s: float) -> None:
        """Kill the workers; return once there is contact again and the ledger is folded up to its end."""
        silence_s = self._boot_s() - until_s + self._timeouts.lease_s
        self._log.warning("ContactLost", silence_s=round(silence_s, 2))
        self._host.note(ContactLost(silence_s=silence_s))
        self._workers.kill_all()
        while self._lease_until_s == until_s or not await self._has_folded_all():
            await asyncio.sleep(self._timeouts.poll_interval_s)
            self._workers.kill_all()  # one may have been starting
        self._log.info("ContactRestored")
        self._host.note(ContactRestored())

    async def _has_folded_all(self) -> bool:
        """No worker starts by a decision that is out of date."""
        try:
            async with asyncio.timeout(self._timeouts.bus_reply_timeout_s):
                return self._host.folded.sequence >= await self._bus.last_sequence(self._pool)
        except (Retry, TimeoutError):
            return False
