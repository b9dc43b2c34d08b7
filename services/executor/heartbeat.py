"""Heartbeats, and the lease of the workers: they run only while NATS acknowledges the heartbeats of this executor.

An acknowledged heartbeat is stored by a majority of the NATS servers, and no other executor and no fence has replaced
the one before (`node_record`). It extends the leases of the workers to `lease_s` after it was sent. Later this executor
kills them; if it is stopped, stuck or starved, they end themselves at that time. The monitor counts a node as lost no
sooner than `heartbeat_timeout_s` after its last stored heartbeat was sent, and only once a fence has replaced that
heartbeat (docs/adr/0038).
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from elasticflow.services.executor.decisions.local_events_and_actions import ContactLost, ContactRestored, NodeClaimed
from elasticflow.services.executor.decisions.state import PoolMembership, State, node_report
from elasticflow.services.executor.node_record import NodeRecord
from elasticflow.shared.errors import Retry, TooLarge
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service.host import Host


class Workers(Protocol):
    """All workers of this node; in production `manager.WorkerManager`.

    preparing: jobs for which this node installs packages before it starts workers.
    """

    @property
    def preparing(self) -> tuple[str, ...]: ...
    def kill_all(self) -> None: ...
    def extend_leases(self, until_s: float) -> None: ...


class Heartbeat:
    """boot_s: the clock of the leases."""

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
    ) -> None:
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

    async def run(self) -> None:
        """Until cancelled. Raises BadSettings (in a group) if another executor of this node id is alive."""
        await self._host.ready.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_heartbeats(), name="heartbeats")
            tasks.create_task(self._enforce_lease(), name="lease")

    @property
    def _timeouts(self) -> FailureTimeouts:
        return self._host.folded.config.timeouts

    async def _send_heartbeats(self) -> None:
        while True:
            sent_s, num_replies = self._boot_s(), self._record.num_replies(self._host.state.incarnation)
            try:
                async with asyncio.timeout(num_replies * self._timeouts.bus_reply_timeout_s):
                    await self._send(sent_s)
            except (Retry, TimeoutError) as error:
                self._log.debug("heartbeat not acknowledged", error=str(error))
            next_s = sent_s + self._timeouts.heartbeat_interval_s
            await asyncio.sleep(max(self._timeouts.poll_interval_s, next_s - self._boot_s()))

    async def _send(self, sent_s: float) -> None:
        state = self._host.state
        if state.shutting_down and state.membership is not PoolMembership.MEMBER:
            return  # claim no further incarnation
        heartbeat = replace(node_report(state, self._clock.now_s()), preparing=self._workers.preparing)
        try:
            is_stored = await self._record.store(heartbeat)
        except TooLarge as error:  # what jobs report must not end the node
            self._log.warning("HeartbeatWithoutMetrics", error=str(error))
            without = node_report(state, self._clock.now_s(), with_metrics=False)
            heartbeat = replace(without, preparing=self._workers.preparing)
            is_stored = await self._record.store(heartbeat)
        if not is_stored:
            return
        self._lease_until_s = sent_s + heartbeat.lease_s
        self._workers.extend_leases(self._lease_until_s)
        if state.claimed != heartbeat.incarnation:
            self._host.note(
                NodeClaimed(
                    incarnation=heartbeat.incarnation,
                    replaced=self._record.replaced,
                    replaced_heard_s=self._record.replaced_heard_s,
                )
            )

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
