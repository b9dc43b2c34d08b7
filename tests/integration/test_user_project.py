"""A project whose packages have the names of ours: `eflow up` starts in it, and its job trains and resumes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elasticflow.client.pool_endpoint import read_run_file
from testbed.real_pool import children, eventually
from tests.support.installation import ROOT, build, copy_of_checkout, install
from tests.support.rings import few_daily

WAIT_S = 400.0  # a new installation compiles the scheduler
TRAIN = """
import time

import torch

import elasticflow
from examples import EXAMPLE
from services.models import Model
from shared.models import SIZE
from simulator.points import points
from tests import CHECKED

class Own(elasticflow.ElasticJob):
    hyperparameters = {"global_batch_size": 8}
    max_iterations = 120
    virtual_nodes = 1
    job_class = "best_effort"

    def init_model(self):
        return Model(SIZE)

    def init_dataset(self):
        return points(SIZE)

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        print("at iteration", self.iteration)
        time.sleep(0.15)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

if __name__ == "__main__":
    answer = elasticflow.submit(Own(), job_id="by-sdk")
    print(type(answer).__name__, answer.job_id)
"""
PROJECT = {
    "train.py": TRAIN,
    "shared/__init__.py": "",
    "shared/models.py": "SIZE = 4\n",
    "services/__init__.py": "",
    "services/models.py": "from torch.nn import Linear\n\nclass Model(Linear):\n"
    "    def __init__(self, size):\n        super().__init__(size, 1)\n",
    "simulator/points.py": "import torch\n\ndef points(size):\n"
    "    return torch.utils.data.TensorDataset(torch.ones(64, size), torch.zeros(64, 1))\n",
    "examples/__init__.py": "EXAMPLE = True\n",
    "tests.py": "CHECKED = True\n",
    # Ends a process of ours that imports from the current folder first.
    "prometheus_client.py": "raise SystemExit('the prometheus_client of the project')\n",
    "psutil.py": "raise SystemExit('the psutil of the project')\n",
}


class Project:
    """A user's folder, and the environment in which `eflow` runs there."""

    def __init__(self, folder: Path, python_path: str) -> None:
        self.folder = folder
        for name, text in PROJECT.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        self.environment = kept | {"PYTHONPATH": python_path}

    async def python(self, *arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self.folder,
            env=self.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(WAIT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def eflow(self, *arguments: str) -> str:
        """Run the installed script."""
        status, output = await self.python("-P", "-c", EFLOW, *arguments)
        assert status == 0, output
        return output

    def workers(self) -> list[psutil.Process]:
        run = read_run_file(self.folder / ".eflow")
        assert run is not None
        executor = next(process for name, process in run.processes.items() if name.startswith("executor"))
        return [worker for server in children(executor.pid) for worker in children(server.pid)]


# What `pip install --editable` installs, in short.
FINDER = """
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "elasticflow":
            folder = ["{package}"]
            file = "{package}/__init__.py"
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folder)

sys.meta_path.insert(0, Finder)
"""
EFLOW = "import sys; sys.argv[0] = 'eflow'; from elasticflow.cli import main; main()"


@pytest.fixture(scope="module")
def wheel_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    checkout = copy_of_checkout(folder / "checkout")
    _, wheel = build(checkout, folder)
    return install(wheel, folder / "site")


@pytest.fixture(scope="module")
def editable_site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ "" if this environment has an editable installation of this checkout, else a folder with the same effect."""
    code = "import elasticflow; print(elasticflow.__file__)"
    env = os.environ | {"PYTHONPATH": ""}
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", env=env, capture_output=True, text=True, check=False
    )
    if Path(found.stdout.strip()).parents[1] == ROOT:
        return ""
    site = tmp_path_factory.mktemp("editable")
    (site / "sitecustomize.py").write_text(FINDER.format(package=ROOT / "elasticflow"))
    return str(site)


@pytest.fixture(params=few_daily(["editable", "wheel"], 1))
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    site = request.getfixturevalue(f"{request.param}_site")
    project = Project(tmp_path / "project", str(site))
    yield project
    run = read_run_file(project.folder / ".eflow")
    if run is not None:  # the test failed before `eflow down`
        os.kill(run.pid, signal.SIGTERM)


def after_its_profiling_run(line: str, logs: Path) -> bool:
    return any(line in file.read_text() for file in sorted(logs.glob("g*-r0.log"))[1:])


async def test_a_project_with_the_names_of_our_packages_trains_and_resumes(project: Project) -> None:
    await project.eflow("up", "--detach", "--nodes", "1", "--slots", "1", "--device", "cpu")
    await project.eflow("submit", "train.py", "--name", "own")
    logs = project.folder / ".eflow" / "logs" / "own"
    await eventually(lambda: after_its_profiling_run("at iteration 1\n", logs), "it trains")
    await project.eflow("checkpoint", "own")
    (worker,) = await eventually(project.workers, "a worker trains")
    worker.kill()
    ended = json.loads(await project.eflow("submit", "train.py", "--name", "own", "--wait", "--json"))["end"]
    assert (ended["activity"], ended["iteration"]) == ("finished", 120)
    log = project.folder / ".eflow" / "logs" / "own" / f"g{ended['generation']}-r0.log"
    assert "\nat iteration 0\n" not in log.read_text(), "it resumes from the checkpoint"
    assert "\nat iteration 119\n" in log.read_text()
    status, output = await project.python("train.py")
    assert (status, output) == (0, "JobAdmitted by-sdk\n")
    await project.eflow("down")
