"""The monitor's tasks beside its host in the simulated pool: the real watch of the nodes, and snapshots."""

import asyncio
from typing import Any

from elasticflow.services.monitor.model import FenceNode
from elasticflow.services.monitor.node_watch import NodeWatch
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.runtime.bus.contract import Bus, Message
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.simulator.pipeline.simulated_process import SilentLog

SNAPSHOT_EVERY = 100  # messages of the ledger
SNAPSHOT_CHECK_S = 0.5  # between two checks


class MonitorTasks:
    """Of one replica of the monitor, through all its restarts."""

    def __init__(self, pool: str, clock: Clock) -> None:
        self._pool, self._clock = pool, clock
        self._node_watch: NodeWatch | None = None

    def act(self, action: FenceNode) -> None:
        assert self._node_watch is not None, "the policy has learned of no heartbeat without it"
        self._node_watch.act(action)

    async def beside(self, bus: Bus, host: Host[Any]) -> None:
        self._node_watch = NodeWatch(bus, self._pool, self._clock, SilentLog(), on_unreadable=_unexpected)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node_watch.run(host), name="node-watch")
            tasks.create_task(self._save_snapshots(bus, host), name="snapshots")

    async def _save_snapshots(self, bus: Bus, host: Host[Any]) -> None:
        saved_at = host.folded.sequence
        while True:
            await asyncio.sleep(SNAPSHOT_CHECK_S)
            snapshot = host.snapshot()
            if snapshot is not None and snapshot.state.sequence - saved_at >= SNAPSHOT_EVERY:
                saved_at = snapshot.state.sequence
                try:
                    await snapshot_store.save(bus, self._pool, snapshot, self._clock.now_s())
                except Retry:
                    continue


def _unexpected(message: Message, error: codec.Undecodable) -> None:
    raise AssertionError(f"{message.subject}: {error}")
