"""Heartbeats, and the lease of the workers: they run only while this node can read the end of the ledger.

The monitor counts a node as lost after `heartbeat_timeout_s` of silence; its jobs are then placed on other nodes. So an
executor that cannot read the ledger kills its workers after half of that time, `lease_s`. Contact means a round trip to
the ledger's leader, then a fold up to the end that it named. It fails with the network, with NATS, with a cluster
without majority, and with a slow reader.

Each contact extends the leases of the workers by `lease_s`. An executor that is stopped, stuck or starved extends
none, and its workers end themselves at the time at which it would have killed them.
"""

import asyncio
import math
from typing import Any, Protocol

from elasticflow.services.executor.decisions.local_events_and_actions import ContactLost, ContactRestored
from elasticflow.services.executor.decisions.state import PoolMembership, State, node_report
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.boot_clock import boot_s
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service.host import Host

_FOLD_POLL_S = 0.01


class Workers(Protocol):
    """All workers of this node; in production `manager.WorkerManager`."""

    def kill_all(self) -> None: ...
    def extend_leases(self, until_s: float) -> None: ...


class Heartbeat:
    def __init__(self, host: Host[State], bus: Bus, pool: str, clock: Clock, log: Any, workers: Workers) -> None:
        self._host, self._bus, self._pool, self._clock, self._log = host, bus, pool, clock, log
        self._workers = workers
        self._contact_s = math.inf  # when the newest successful contact began; inf: none yet

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_heartbeats(), name="heartbeats")
            tasks.create_task(self._keep_contact(), name="contact")
            tasks.create_task(self._enforce_lease(), name="lease")

    async def _send_heartbeats(self) -> None:
        subject = subjects.telemetry(self._pool, self._host.state.node_id)
        while True:
            if self._host.state.membership is PoolMembership.MEMBER:
                await self._send(subject)
            await asyncio.sleep(self._timeouts.heartbeat_interval_s)

    async def _send(self, subject: str) -> None:
        now_s = self._clock.now_s()
        heartbeat = node_report(self._host.state, now_s)
        try:
            await self._bus.publish(subject, codec.encode(heartbeat, id="", recorded_at_s=now_s))
        except Retry as error:
            self._log.debug("heartbeat lost", error=str(error))

    async def _keep_contact(self) -> None:
        while True:
            began_s, timeouts = boot_s(), self._timeouts
            try:
                async with asyncio.timeout(timeouts.bus_reply_timeout_s):
                    end = await self._bus.last_sequence(self._pool)
            except TimeoutError:
                self._log.debug("ledger out of reach", waited_s=timeouts.bus_reply_timeout_s)
                continue
            except Retry as error:
                self._log.debug("ledger out of reach", error=str(error))
            else:
                while self._host.folded.sequence < end:  # noqa: ASYNC110 - the host signals no fold
                    await asyncio.sleep(_FOLD_POLL_S)
                self._contact_s = began_s
                self._workers.extend_leases(began_s + timeouts.lease_s)
            next_s = began_s + timeouts.heartbeat_interval_s
            await asyncio.sleep(max(timeouts.poll_interval_s, next_s - boot_s()))

    @property
    def _timeouts(self) -> FailureTimeouts:
        return self._host.folded.config.timeouts

    async def _enforce_lease(self) -> None:
        while True:
            await asyncio.sleep(self._timeouts.poll_interval_s)
            silence_s = boot_s() - self._contact_s
            if silence_s > self._timeouts.lease_s:
                await self._wait_without_workers(silence_s)

    async def _wait_without_workers(self, silence_s: float) -> None:
        """Kill the workers; return at the next contact."""
        last_contact_s = self._contact_s
        self._log.warning("ContactLost", silence_s=round(silence_s, 2))
        self._host.note(ContactLost(silence_s=silence_s))
        self._workers.kill_all()
        while self._contact_s == last_contact_s:
            await asyncio.sleep(self._timeouts.poll_interval_s)
            self._workers.kill_all()  # one may have been starting
        self._log.info("ContactRestored")
        self._host.note(ContactRestored())
