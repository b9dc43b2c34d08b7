"""One node with real worker processes, shared by all tests here: its fork server loads torch once."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.engine.transports import TransportName
from testbed.worker_nodes import Node, job_spec
from tests.support.rings import few_daily
from tests.support.task_runners import Runners

ASYNCHRONOUS_WORKERS = "tests.support.asynchronous_workers"  # its import changes the transport of a process
IS_ASYNCHRONOUS = os.environ.get("EF_TEST_TRANSPORT") == TransportName.ASYNCHRONOUS
LIBRARIES = (
    "transformers.trainer",
    "peft",
    "accelerate",
    "pytorch_lightning",
)  # seconds to load; in each worker otherwise


@pytest_asyncio.fixture(loop_scope="session")
async def runners(node: Node, tmp_path: Path) -> AsyncIterator[Runners]:
    runners = Runners(node.launcher, tmp_path)
    yield runners
    await runners.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Its workers also import `examples`, which no installation holds. EF_TEST_TRANSPORT=asynchronous runs all tests on
    workers that exchange tensors as over NCCL."""
    preload = (ASYNCHRONOUS_WORKERS,) if IS_ASYNCHRONOUS else ()
    async with _running(Node(tmp_path_factory.mktemp("node"), preload=preload)) as node:
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def asynchronous_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Its workers exchange tensors as over NCCL."""
    folder = tmp_path_factory.mktemp("asynchronous_node")
    async with _running(Node(folder, preload=(ASYNCHRONOUS_WORKERS,))) as node:
        assert ASYNCHRONOUS_WORKERS in (folder / "logs" / "fork-server.log").read_text()
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def library_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Its fork server has loaded the training libraries, as EF_PRELOAD lets it."""
    preload = (*LIBRARIES, *((ASYNCHRONOUS_WORKERS,) if IS_ASYNCHRONOUS else ()))
    async with _running(Node(tmp_path_factory.mktemp("library_node"), preload=preload)) as node:
        yield node


@pytest.fixture(params=few_daily([TransportName.GLOO, TransportName.ASYNCHRONOUS], 1), ids=str)
def each_node(request: pytest.FixtureRequest) -> Node:
    """For tests that run over both transports. Starts no node that is not used."""
    return request.getfixturevalue("node" if request.param == TransportName.GLOO else "asynchronous_node")


@asynccontextmanager
async def _running(node: Node) -> AsyncIterator[Node]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
        await node.launcher.start()  # and starts another fork server where a test kills one
        yield node
        await node.launcher.close()


@pytest.fixture
def slow_down(tmp_path: Path) -> Path:
    """While it exists, a job that gets its path does not end."""
    file = tmp_path / "slow_down"
    file.touch()
    return file


@pytest.fixture(scope="session")
def spec_of() -> Any:
    return job_spec
