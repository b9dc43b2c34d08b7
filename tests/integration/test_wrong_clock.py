"""A planner on a real server decides and quotes nothing while its clock differs from the server's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.errors import NoAdmission, NotQuoted
from elasticflow.services.admission.service import serve
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import DeadlineQuoted, JobRejected
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import Clock, SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state.policy import planner
from elasticflow.shared.state.pool import PoolState
from testbed.histories import spec, submit
from testbed.real_pool import eventually, persistently
from tests.support.service_contexts import service_context
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
        service_context(bus, POOL, clock),
        planner("admission", reject_all),
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


@contextlib.asynccontextmanager
async def admission(url: str, clock: Clock, data_dir: Path) -> AsyncIterator[None]:
    """A replica with this clock."""
    bus = await connect_nats(url, name="admission")
    environment = {"EF_POOL": POOL, "EF_DATA_DIR": str(data_dir), "EF_METRICS_PORT": "0"}
    process = Process(
        settings=Settings.from_environment(environment),
        bus=bus,
        clock=clock,
        log=get_log("admission"),
        metrics=Metrics("admission", POOL),
    )
    task = asyncio.create_task(serve(process))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await bus.close()


async def test_a_replica_with_a_wrong_clock_leaves_quotes_to_another(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    bus = await connect_nats(nats_server.url, name="test")
    await bus.ensure_pool(POOL)
    async with Client.connect(Endpoint(nats_url=nats_server.url, pool=POOL), tenant="lab") as client:

        async def quoted() -> object:
            return await persistently(lambda: client.quote(spec(deadline_s=None)), unless=NotQuoted)

        async with admission(nats_server.url, WrongClock(), tmp_path / "wrong"):
            with pytest.raises(NotQuoted, match=r"clock is 5.* s ahead of that of NATS"):
                await quoted()
            async with admission(nats_server.url, SystemClock(), tmp_path / "right"):
                assert isinstance(await persistently(lambda: client.quote(spec(deadline_s=None))), DeadlineQuoted)
        with pytest.raises(NoAdmission):
            await client.quote(spec(deadline_s=None))
    await bus.close()
