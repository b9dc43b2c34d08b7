"""Heartbeats in the simulated pool: executors send them, the monitor receives them and sometimes saves a snapshot.

The services do the same on NATS in `services/executor/processes/heartbeat.py` and `services/monitor/service.py`.
"""

import asyncio
from typing import Any

from elasticflow.services.executor.decisions.state import PoolMembership, node_report
from elasticflow.services.monitor.model import Connected
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host

SNAPSHOT_EVERY = 100  # messages of the ledger


async def send_heartbeats(bus: Bus, pool: str, host: Host[Any], clock: Clock) -> None:
    """While the node is a member of the pool."""
    while True:
        if host.state.membership is PoolMembership.MEMBER:
            now_s = clock.now_s()
            data = codec.encode(node_report(host.state, now_s), id="", recorded_at_s=now_s)
            await bus.publish(subjects.telemetry(pool, host.state.node_id), data)
        await asyncio.sleep(host.folded.config.timeouts.heartbeat_interval_s)


async def watch_nodes(bus: Bus, pool: str, host: Host[Any]) -> None:
    """Pass each heartbeat to the monitor's policy, and note whether the bus can be reached."""
    heartbeats = await bus.subscribe(subjects.every_node(pool))

    async def receive() -> None:
        async for message in heartbeats:
            host.note(codec.decode(message.data).message)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(receive(), name="receive")
        tasks.create_task(_note_connection(bus, pool, host), name="connection")


async def _note_connection(bus: Bus, pool: str, host: Host[Any]) -> None:
    saved_at = host.folded.sequence
    while True:
        timeouts = host.folded.config.timeouts
        try:
            async with asyncio.timeout(timeouts.bus_reply_timeout_s):
                await bus.last_sequence(pool)
            host.note(Connected())
            if host.folded.sequence - saved_at >= SNAPSHOT_EVERY:
                saved_at = host.folded.sequence
                await snapshot_store.save(bus, pool, host.folded)
        except (Retry, TimeoutError):
            pass  # without `Connected` the monitor counts no node as lost
        await asyncio.sleep(timeouts.heartbeat_interval_s)
