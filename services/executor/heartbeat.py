"""Heartbeats, and the fence: workers live only as long as this node can see the end of the ledger.

The monitor counts a node as lost after `heartbeat_timeout_s` of silence, and its jobs are then placed elsewhere. So a
node that sees no more of the ledger ends its workers after half of that, `lease_s`, by itself. The sign of sight is a
round trip to the ledger's leader, followed by a fold up to the end that it named: it fails with the network, with
NATS, with a cluster that lost its majority, and with a reader that lags.

Each sight extends the leases of the workers by as much: an executor that is stopped, stuck or starved extends nothing,
and its workers end by themselves at the instant at which it would have ended them.
"""

import asyncio
import math
from typing import Any, Protocol

from services.executor.boot_clock import boot_s
from services.executor.model import Membership, State
from services.executor.notes import ContactLost, ContactRestored
from services.executor.observing import report
from shared.errors import Retry
from shared.messages import codec, subjects
from shared.messages.detection import DetectionTimes
from shared.runtime.bus import Bus
from shared.runtime.clock import Clock
from shared.runtime.host import Host

_FOLD_POLL_S = 0.01


class Workers(Protocol):
    """All workers of this node; `workforce.Workforce` in earnest."""

    def kill_all(self) -> None: ...
    def extend_leases(self, until_s: float) -> None: ...


class Heartbeat:
    """workers: those that live as long as the ledger is in sight."""

    def __init__(
        self, host: Host[State], bus: Bus, pool: str, clock: Clock, log: Any, workers: Workers
    ) -> None:
        self._host, self._bus, self._pool, self._clock, self._log = host, bus, pool, clock, log
        self._workers = workers
        self._in_sight_s = math.inf  # when the ledger's end was last known to be folded; inf: not yet at all

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat(), name="beat")
            tasks.create_task(self._look_for_the_end(), name="look for the ledger's end")
            tasks.create_task(self._fence(), name="fence")

    async def _beat(self) -> None:
        subject = subjects.telemetry(self._pool, self._host.state.node_id)
        while True:
            if self._host.state.membership is Membership.MEMBER:
                await self._tell(subject)
            await asyncio.sleep(self._times.beat_s)

    async def _tell(self, subject: str) -> None:
        now_s = self._clock.now_s()
        heartbeat = report(self._host.state, now_s)
        try:
            await self._bus.publish(subject, codec.encode(heartbeat, id="", recorded_at_s=now_s))
        except Retry as error:
            self._log.debug("heartbeat lost", error=str(error))

    async def _look_for_the_end(self) -> None:
        while True:
            asked_s, times = boot_s(), self._times
            try:
                async with asyncio.timeout(times.answer_s):
                    end = await self._bus.last_sequence(self._pool)
            except TimeoutError:
                self._log.debug("ledger out of sight", waited_s=times.answer_s)
                continue
            except Retry as error:
                self._log.debug("ledger out of sight", error=str(error))
            else:
                while self._host.folded.sequence < end:  # noqa: ASYNC110 - the host tells nobody of a fold
                    await asyncio.sleep(_FOLD_POLL_S)
                self._in_sight_s = asked_s
                self._workers.extend_leases(asked_s + times.lease_s)
            await asyncio.sleep(max(times.look_s, asked_s + times.beat_s - boot_s()))

    @property
    def _times(self) -> DetectionTimes:
        return self._host.folded.config.detection

    async def _fence(self) -> None:
        while True:
            await asyncio.sleep(self._times.look_s)
            silence_s = boot_s() - self._in_sight_s
            if silence_s > self._times.lease_s:
                await self._stay_cut_off(silence_s)

    async def _stay_cut_off(self, silence_s: float) -> None:
        """End the workers; go on when the ledger's end is in sight again."""
        last_in_sight_s = self._in_sight_s
        self._log.warning("ContactLost", silence_s=round(silence_s, 2))
        self._host.note(ContactLost(silence_s=silence_s))
        self._workers.kill_all()
        while self._in_sight_s == last_in_sight_s:
            await asyncio.sleep(self._times.look_s)
            self._workers.kill_all()  # one may have been about to start
        self._log.info("ContactRestored")
        self._host.note(ContactRestored())
