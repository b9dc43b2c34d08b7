"""The monitor's access to the records of the nodes: it receives each stored heartbeat, and fences silent nodes.

A fence replaces the last known heartbeat of a node by compare-and-set. So it fails if the node has stored a later one,
whether or not that has arrived here. Once it is stored, no later heartbeat of the incarnation is (docs/adr/0038).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from elasticflow.services.monitor.model import Connected, FenceNode, HeartbeatStored, MonitorState, NodeIsFenced
from elasticflow.shared.errors import Retry, WrongExpectedSequence
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import NodeFenced, NodeReported
from elasticflow.shared.runtime.bus.contract import REVISION_HEADER, Bus, Message, Subscription, until_available
from elasticflow.shared.runtime.bus.streams import node_bucket
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.nodes import slower_node_in_words, slower_nodes
from elasticflow.shared.state.pool import PoolState

OnUnreadable = Callable[[Message, codec.Undecodable], None]


class NodeWatch:
    """on_unreadable: receives each message that is no stored heartbeat or fence."""

    def __init__(self, bus: Bus, pool: str, clock: Clock, log: Any, *, on_unreadable: OnUnreadable) -> None:
        self._bus, self._pool, self._clock, self._on_unreadable = bus, pool, clock, on_unreadable
        self._log = log
        self._due: asyncio.Queue[FenceNode] = asyncio.Queue()

    def act(self, action: FenceNode) -> None:
        self._due.put_nowait(action)

    async def run(self, host: Host[MonitorState]) -> None:
        """Receive heartbeats, note the connection and fence nodes, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive(host), name="receive")
            tasks.create_task(self._note_connection(host), name="connection")
            while True:
                tasks.create_task(self._fence(host, await self._due.get()), name="fence")

    async def _receive(self, host: Host[MonitorState]) -> None:
        async for message in await until_available(self._subscribe, self._log, "heartbeats"):
            try:
                heartbeat, revision = codec.decode(message.data).message, message.headers.get(REVISION_HEADER, "")
                if not isinstance(heartbeat, NodeReported | NodeFenced):
                    raise codec.Undecodable(f"type: {type(heartbeat).__name__} is no telemetry")
                if not (revision.isascii() and revision.isdigit()):
                    raise codec.Undecodable("revision: NATS has not stored this heartbeat")
            except codec.Undecodable as error:
                self._on_unreadable(message, error)
                continue
            if isinstance(heartbeat, NodeReported):
                host.note(HeartbeatStored(heartbeat=heartbeat, revision=int(revision)))

    async def _subscribe(self) -> Subscription:
        return await self._bus.subscribe(subjects.every_node(self._pool))

    async def _note_connection(self, host: Host[MonitorState]) -> None:
        """Note at each heartbeat interval whether a round trip succeeds.

        A half-open connection looks connected but delivers no heartbeats.
        """
        while True:
            timeouts = host.folded.config.timeouts
            try:
                async with asyncio.timeout(timeouts.bus_reply_timeout_s):
                    await self._bus.last_sequence(self._pool)
                host.note(Connected())
            except (Retry, TimeoutError):
                pass  # without `Connected` the policy fences no node
            await asyncio.sleep(timeouts.heartbeat_interval_s)

    async def _fence(self, host: Host[MonitorState], action: FenceNode) -> None:
        try:
            async with asyncio.timeout(host.folded.config.timeouts.bus_reply_timeout_s):
                host.note(await self._fenced(action))
        except (Retry, WrongExpectedSequence, TimeoutError):
            pass  # the policy asks again

    async def _fenced(self, action: FenceNode) -> NodeIsFenced | HeartbeatStored:
        """The fence, or a heartbeat that was stored before it."""
        done = NodeIsFenced(node_id=action.node_id, incarnation=action.incarnation)
        now_s = self._clock.now_s()
        fence = NodeFenced(node_id=action.node_id, incarnation=action.incarnation, at_s=now_s)
        data = codec.encode(fence, id="", recorded_at_s=now_s)
        try:
            await self._write(action.node_id, data, action.revision)
        except WrongExpectedSequence:
            record = await self._bus.get_value(node_bucket(self._pool), action.node_id)
            match codec.message_or_none(record.data) if record is not None else None:
                case NodeReported() as stored if record is not None and stored.incarnation == action.incarnation:
                    return HeartbeatStored(heartbeat=stored, revision=record.revision)
                case NodeFenced() as stored if stored.incarnation == action.incarnation:
                    return done
                case NodeReported() if record is not None:
                    # Another incarnation has replaced this one. To write it again proves that the read was not stale.
                    await self._write(action.node_id, record.data, record.revision)
                case _:
                    await self._write(action.node_id, data, record.revision if record is not None else 0)
        return done

    async def _write(self, node_id: str, data: bytes, expected_revision: int) -> None:
        await self._bus.put_value(node_bucket(self._pool), node_id, data, expected_revision=expected_revision)


# --- slower nodes --------------------------------------------------------------------------------------
# Logs nodes that are slower than others of their GPU type: their type is probably wrong. No decision depends on it.


class SlowerNodes:
    """Names each node once, and again after it was not slower meanwhile. log: of the service."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._reported = frozenset[str]()

    def report(self, state: PoolState) -> None:
        slower = slower_nodes(state)
        for node_id in sorted(slower.keys() - self._reported):
            words = slower_node_in_words(node_id, state.nodes[node_id].gpu_type, slower[node_id])
            self._log.warning("NodeSlower", node_id=node_id, problem=words)
        self._reported = frozenset(slower)
