"""Jobs in Python environments of their own, made by real forks and real installers. Without a network."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import psutil
import pytest
import pytest_asyncio

from elasticflow.services.executor.processes.job_environments import UNUSED_S, JobEnvironments
from elasticflow.services.executor.processes.prepared_folders import CannotPrepare, PreparedFolders
from elasticflow.services.executor.processes.worker_isolation import WorkerIsolation
from elasticflow.services.executor.worker.preparation import make_environment
from elasticflow.services.executor.worker.preparation.make_environment import EnvironmentMaker
from elasticflow.shared.messages.worker_protocol.forking import Isolation
from elasticflow.shared.messages.worker_protocol.from_worker import Finished, Started
from elasticflow.shared.runtime.process.environment_python import interpreter_of
from elasticflow.shared.runtime.process.isolation.machine_check import python_folders
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.worker_nodes import Node, job_spec
from tests.support.namespaces import skip_without_namespaces
from tests.support.own_environments import OLD, make_index, own_environment
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.asyncio(loop_scope="session")

WITHIN_S = 600.0
CODE = Path(__file__).parents[2] / "testbed" / "user_code"
JOB = "own_packages:OwnPackages"
REAL_UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
OTHER_PYTHON = "3.12.99"  # that no node has


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("index") / "wheels")


class OwnNode(Node):
    """environments: of this node's jobs."""

    def __init__(self, folder: Path, **launching) -> None:
        super().__init__(folder, **launching)
        self.folders = PreparedFolders(self.launcher.fork, SilentLog())
        self.environments = JobEnvironments(folder, self.folders)

    async def made(self, environment, tenant: str = "lab") -> str:
        return await self.environments.folder(tenant, environment, within_s=WITHIN_S)

    async def result(self, environment: str | Path, **launch) -> tuple[dict[str, Any], float]:
        """What the job says of its packages, and its bits."""
        job_id = self.new_job_id()
        spec = job_spec(JOB, global_batch_size=8, max_iterations=12)
        workers = await self.launch(spec, job_id=job_id, environment_path=str(environment), **launch)
        metrics = (await workers.first(Finished)).metrics
        await workers.ended()
        (said,) = (line for line in self.log_of(job_id).splitlines() if line.startswith("own packages "))
        return json.loads(said.removeprefix("own packages ")), metrics["bits"]


@asynccontextmanager
async def running(folder: Path, isolation: WorkerIsolation) -> AsyncIterator[OwnNode]:
    node = OwnNode(folder, isolation=isolation)
    await node.launcher.start()
    try:
        yield node
    finally:
        await node.folders.close()
        await node.launcher.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OwnNode]:
    async with running(tmp_path_factory.mktemp("own_node"), WorkerIsolation()) as node:
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def isolated_node(tmp_path_factory: pytest.TempPathFactory, index: Path) -> AsyncIterator[OwnNode]:
    skip_without_namespaces()
    folder = tmp_path_factory.mktemp("isolated_node")
    readable = (*python_folders(), str(index))
    isolation = WorkerIsolation(Isolation(namespaces=True, readable=readable, hidden=(str(folder),)))
    async with running(folder, isolation) as node:
        yield node


@pytest.fixture(params=["own_node", "isolated_node"])
def each_own_node(request: pytest.FixtureRequest) -> OwnNode:
    return request.getfixturevalue(request.param)


async def test_a_job_has_its_own_packages_and_the_bits_of_plain_torch_with_them(each_own_node, index):
    node, wanted = each_own_node, own_environment(index, "packaging<25", "ef_tiny")
    environment = Path(await node.made(wanted))
    (node.folder / "environments" / "another-tenant").mkdir()
    said, bits = await node.result(environment)
    is_isolated = node.launcher._isolation.isolation is not None
    assert said["packaging"] == OLD
    assert said["prefix"] == str(environment / "venv")
    assert said["has rich"] is False, "what it did not ask for is not there"
    assert said["is writable"] is not is_isolated
    assert ("another-tenant" in said["tenants"]) is not is_isolated
    plain = await asyncio.to_thread(plain_training, environment)
    assert (plain.stdout.strip(), plain.returncode) == (str(int(bits)), 0), plain.stderr
    assert await node.made(wanted) == str(environment), "made once"
    assert await node.result(environment, num_workers=2) == (said, bits)
    torch = environment / "venv" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "torch"
    assert torch.is_symlink(), "the node's torch is not copied"


def plain_training(environment: Path) -> subprocess.CompletedProcess[str]:
    """The same without a pool."""
    return subprocess.run(
        [interpreter_of(environment), str(CODE / "own_packages.py")],
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("lines", "python", "said"),
    [
        (("msgpack<1",), "", "msgpack<1: the worker needs msgpack>=1.0.8; require a version that goes with it"),
        (("torch==2.9.0",), "", "torch==2.9.0: the worker needs torch>=2.11,<2.16"),
        (("ef_tiny==9",), "", "ef_tiny==9"),
        ((), OTHER_PYTHON, f"Python {OTHER_PYTHON} cannot be had: "),
        (("ef_breaks",), "", "the worker cannot be imported in it; it needs msgpack>=1.0.8, "),
    ],
)
async def test_what_cannot_be_had_fails_its_job_and_says_why(own_node, index, lines, python, said):
    make_wheel(index, "ef_breaks")
    with ZipFile(index / "ef_breaks-1.0-py3-none-any.whl", "a") as wheel:
        wheel.writestr("ef_breaks.pth", "import sys; sys.modules['msgpack'] = None\n")
    with pytest.raises(CannotPrepare) as unusable:
        await own_node.made(own_environment(index, *lines, python=python))
    assert str(unusable.value).startswith("its environment cannot be had: ")
    assert said in str(unusable.value)


async def test_a_job_trains_with_a_numpy_that_the_node_has_not(own_node, index):
    download = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(index), "numpy==1.26.4")
    if (await asyncio.to_thread(subprocess.run, download, check=False)).returncode:
        pytest.skip("no package index has numpy 1.26.4 for this Python")
    environment = Path(await own_node.made(own_environment(index, "numpy<2", "packaging")))
    said, bits = await own_node.result(environment)
    assert said["numpy"] == "1.26.4"
    plain = await asyncio.to_thread(plain_training, environment)
    assert (plain.stdout.strip(), plain.returncode) == (str(int(bits)), 0), plain.stderr


@pytest.mark.skipif(REAL_UV is None, reason="this machine has no uv")
async def test_uv_makes_an_environment_in_which_a_worker_can_be_imported(index, tmp_path, monkeypatch):
    monkeypatch.setattr(make_environment, "_uv", lambda: REAL_UV)
    (tmp_path / "work").mkdir()
    maker = EnvironmentMaker(tmp_path / "result", tmp_path / "work")
    await asyncio.to_thread(maker.make, own_environment(index, "packaging<25"))
    await asyncio.to_thread(maker.check_worker)
    (info,) = (tmp_path / "result" / "venv").glob("lib/python3.*/site-packages/packaging-0.5.dist-info")
    assert (info / "INSTALLER").read_text() == "uv"


async def test_an_environment_whose_python_is_gone_is_made_anew(own_node, index):
    wanted = own_environment(index, "packaging<25", "ef_tiny")
    environment = Path(await own_node.made(wanted))
    interpreter = interpreter_of(environment)
    os.unlink(interpreter)
    os.symlink("/absent/python3", interpreter)
    assert await own_node.made(wanted) == str(environment)
    assert os.access(interpreter, os.X_OK)


async def test_a_fork_server_of_an_environment_is_warm_while_it_is_used(own_node, index, monkeypatch):
    environment = await own_node.made(own_environment(index, "packaging<25", "ef_tiny"))
    servers = own_node.launcher._environments
    await servers.close()  # those of other tests
    first = await own_node.result(environment)
    assert servers.in_use == (environment,)
    (follower,) = servers._followers
    monkeypatch.setattr(servers, "_unused_s", 0.0)
    servers._servers[environment].changed.set()
    async with asyncio.timeout(WITHIN_S):
        await follower
    assert servers.in_use == ()
    monkeypatch.setattr(servers, "_unused_s", UNUSED_S)
    assert await own_node.result(environment) == first, "a later job has a new one"
    assert servers.in_use == (environment,)


async def test_a_fork_server_that_dies_takes_the_workers_of_its_environment_only(own_node, index):
    environment = await own_node.made(own_environment(index, "packaging<25", "ef_tiny"))
    spec = job_spec("Points", hyperparameters={"step_s": 0.01}, max_iterations=1_000_000)
    ours = await own_node.launch(spec, job_id=own_node.new_job_id(), environment_path=environment)
    theirs = await own_node.launch(spec, job_id=own_node.new_job_id(), gpu_index=1)
    (our_worker,), (their_worker,) = ours.workers.values(), theirs.workers.values()
    server = psutil.Process(our_worker.pid).parent()
    assert server is not None
    server.kill()
    (end,) = (await ours.ended()).values()
    assert end.signal == signal.SIGKILL
    assert psutil.pid_exists(their_worker.pid)
    await theirs.first(Started)
    theirs.stop()
    await theirs.ended()
    assert await own_node.result(environment), "the next worker has a new fork server"
