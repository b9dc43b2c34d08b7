"""A planner on a real server takes no decisions while its clock differs from the server's."""

import asyncio

import structlog

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import JobRejected
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.state.policy import planner
from elasticflow.shared.state.pool import PoolState
from tests.support.histories import spec, submit
from tests.support.real_pool import eventually
from tests.support.shared_pool import POOL, read_all


class WrongClock(SystemClock):
    offset_s = 5.0

    def now_s(self) -> float:
        return super().now_s() + self.offset_s


def reject_all(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[JobRejected, ...]:
    return tuple(
        JobRejected(job_id=c.job_id, tenant=c.tenant, spec=spec(), reason="invalid", explanation="", at_s=now_s)
        for c in commands
    )


async def test_decisions_begin_once_the_clock_is_right(nats_server: EmbeddedServer) -> None:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    command = codec.encode(submit("a"), id="a", recorded_at_s=0.0)
    await bus.append(subjects.submit("lab", POOL), command, message_id="a")
    clock = WrongClock()
    host = Host(
        bus=bus,
        pool=POOL,
        policy=planner("admission", reject_all),
        clock=clock,
        instance="one",
        log=structlog.get_logger(),
        metrics=Metrics("admission", POOL),
        takes_commands=True,
    )
    running = asyncio.create_task(host.run())
    await eventually(lambda: "ahead of that of NATS" in str(host.unwell()), "the host notices its clock")
    clock.offset_s = 0.0
    await eventually(lambda: host.folded.sequence, "the host decides")
    (stored,) = await read_all(bus)
    decision = codec.decode(stored.data).message
    assert abs(decision.now_s - stored.stored_at_s) < WrongClock.offset_s
    assert host.unwell() is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await bus.close()
