"""The monitor on the bus: it hears all telemetry, keeps the gauges and the snapshot."""

import asyncio
import contextlib
import hashlib

from services.monitor.gauges import PoolGauges
from services.monitor.model import Listening, State
from services.monitor.policy import POLICY
from shared.errors import ElasticFlowError, Retry
from shared.messages import codec, subjects
from shared.messages.events import NodeReported
from shared.runtime import snapshots
from shared.runtime.bus import Message
from shared.runtime.host import Host
from shared.runtime.outbox import dead_letter_headers
from shared.runtime.service import Process, host_policy
from shared.scheduling.warm_up import warm_up

SAVE_TIMEOUT_S = 10.0
PUT_ASIDE_TIMEOUT_S = 1.0
MAX_RUBBISH = 64  # messages that wait to be put aside
SNAPSHOT_EVERY = 5_000  # messages of the ledger


async def serve(process: Process) -> None:
    """Watch, until cancelled."""

    async def beside(host: Host[State]) -> None:
        watch = _Watch(process, host)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.hear(), name="hear")
            tasks.create_task(watch.put_aside(), name="put aside")
            tasks.create_task(watch.keep(), name="keep")

    await host_policy(process, POLICY, leads_by_lease=True, prepare=warm_up, beside=beside)


class _Watch:
    def __init__(self, process: Process, host: Host[State]) -> None:
        self._process, self._host = process, host
        self._pool = process.settings.pool
        self._gauges = PoolGauges(process.metrics)
        self._saved_at = host.folded.sequence
        self._rubbish: asyncio.Queue[tuple[Message, codec.Undecodable]] = asyncio.Queue(MAX_RUBBISH)

    async def hear(self) -> None:
        """Hand each heartbeat to the policy; what is no heartbeat goes to the dead letters."""
        heartbeats = await self._process.bus.subscribe(subjects.every_node(self._pool))
        async for message in heartbeats:
            try:
                reported = codec.decode(message.data).message
                if not isinstance(reported, NodeReported):
                    raise codec.Undecodable(f"type: {type(reported).__name__} is no telemetry")
            except codec.Undecodable as error:
                self._process.metrics.refused_total.inc()
                with contextlib.suppress(asyncio.QueueFull):  # a flood of rubbish is counted, not kept
                    self._rubbish.put_nowait((message, error))
                continue
            self._host.note(reported)

    async def put_aside(self) -> None:
        """Keep what was no heartbeat on the dead-letter subject, beside the hearing: it must not hold that up."""
        while True:
            message, error = await self._rubbish.get()
            self._process.log.warning("MessageRefused", subject=message.subject, problems=error.problems)
            digest = hashlib.blake2b(message.data, digest_size=10).hexdigest()
            with contextlib.suppress(ElasticFlowError, TimeoutError):  # telemetry is not worth waiting for
                await self._process.bus.append(
                    subjects.dead_letter(self._pool, POLICY.service),
                    message.data,
                    message_id=f"dead-{self._pool}-{digest}",
                    timeout_s=PUT_ASIDE_TIMEOUT_S,
                    headers=dead_letter_headers(message.subject, error.problems),
                )

    async def keep(self) -> None:
        """At each beat: say that we listen, bring the gauges up to date, now and then take a snapshot."""
        try:
            while True:
                if await self._in_touch():
                    self._host.note(Listening())
                self._gauges.update(self._host.folded, self._process.clock.now_s())
                if self._host.folded.sequence - self._saved_at >= SNAPSHOT_EVERY:
                    await self._snapshot()
                await asyncio.sleep(self._host.folded.config.detection.beat_s)
        finally:
            if self._host.folded.sequence - self._saved_at >= SNAPSHOT_EVERY // 10:
                await self._snapshot()

    async def _in_touch(self) -> bool:
        """A round trip: a connection that hangs half-open looks connected and brings no heartbeats."""
        try:
            async with asyncio.timeout(self._host.folded.config.detection.answer_s):
                await self._process.bus.last_sequence(self._pool)
        except (Retry, TimeoutError):
            return False
        return True

    async def _snapshot(self) -> None:
        state = self._host.folded
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await snapshots.save(self._process.bus, self._pool, state)
        except (ElasticFlowError, TimeoutError) as error:
            self._process.log.warning("snapshot not saved", error=str(error))
            return
        self._saved_at = state.sequence
        self._process.log.info("snapshot saved", sequence=state.sequence)
