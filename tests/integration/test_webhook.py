"""A monitor on a real nats-server posts to its webhook once it leads."""

import asyncio
from contextlib import AsyncExitStack

from elasticflow.services.monitor.service import MonitorSettings, serve
from elasticflow.services.monitor.webhook import TOLD
from elasticflow.shared.errors import NotFound
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.shared.runtime.service.run_service import Process
from testbed.command_line import POOL, WAIT_S, CommandLinePool
from tests.unit.services.monitor.test_webhook import receiving


async def test_the_leading_monitor_posts_the_end_of_a_job(cli: CommandLinePool) -> None:
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving())
        bus = await connect_nats(cli.url, name="monitor")
        stack.push_async_callback(bus.close)
        process = Process(
            settings=Settings.from_environment({"NATS_URL": cli.url, "EF_DATA_DIR": str(cli.folder)}),
            bus=bus,
            clock=SystemClock(),
            log=get_log("monitor"),
            metrics=Metrics("monitor", POOL),
        )
        monitor = asyncio.create_task(serve(process, MonitorSettings(webhook_url=receiver.url)))
        try:
            async with asyncio.timeout(3 * WAIT_S):
                while not await _leads(cli):  # noqa: ASYNC110 - an object can only be polled
                    await asyncio.sleep(0.05)
                assert (await cli.eflow("submit", "line.py", "--deadline", "1h", "--name", "j1")).status == 0
                assert (await cli.eflow("cancel", "j1", "--reason", "wrong data")).status == 0
                await receiver.received.wait()
            assert not monitor.done()
        finally:
            monitor.cancel()
            await asyncio.gather(monitor, return_exceptions=True)
    body = receiver.requests[0][1]
    assert (body["pool"], body["job_id"], body["what"]) == (POOL, "j1", "cancelled")
    assert body["text"] == "j1 cancelled: wrong data"


async def _leads(cli: CommandLinePool) -> bool:
    """Whether a monitor has begun to tell."""
    try:
        await cli.bus.get_object(streams.snapshot_bucket(POOL), TOLD, max_bytes=1_000)
    except NotFound:
        return False
    return True
