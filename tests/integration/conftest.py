"""One contract, two buses: each test with the fixture `connect` runs on the in-memory bus and on a real nats-server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.simulator.pipeline.memory_broker import MemoryBroker
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.command_line import CommandLinePool, command_line_pool
from testbed.real_pool import RunningPool, running_pool
from tests.support.shared_pool import POOL, Connect


@pytest.fixture(params=["memory", "nats"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Connects clients to one bus, as separate processes do; all are closed at the end."""
    buses: list[Bus] = []
    broker = MemoryBroker()
    server = request.getfixturevalue("nats_server") if request.param == "nats" else None

    async def connect(limits: StreamLimits | None = None) -> Bus:
        if server is None:
            bus: Bus = MemoryBus(broker, limits=limits)
        else:
            bus = await connect_nats(server.url, name="test", limits=limits)
        buses.append(bus)
        return bus

    yield connect
    for bus in buses:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    """A client of a bus with one pool."""
    bus = await connect()
    await bus.ensure_pool(POOL)
    return bus


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def session_pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningPool]:
    """A real pool with one node of two slots, which takes seconds to start. Each test has its own names of jobs and
    loads, ends them, and leaves a pool that can train."""
    async with running_pool(tmp_path_factory.mktemp("shared"), num_nodes=1, replicas={}) as pool:
        yield pool


@pytest.fixture
async def cli(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[CommandLinePool]:
    folder = tmp_path / "user"
    folder.mkdir()
    async with command_line_pool(nats_server.url, folder) as cli:
        yield cli
