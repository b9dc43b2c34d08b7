"""Jobs in Python environments of their own train on a real pool, beside one that has the node's. Without a network."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from testbed.fault_evidence import assert_sound
from testbed.real_pool import POOL, RunningPool, running_pool
from tests.support.executor_process import ROOT
from tests.support.namespaces import skip_without_namespaces
from tests.support.own_environments import OLD, make_index
from tests.support.rings import few_daily

WAIT_S = 600.0
JOB = "own_packages.py"
SCRIPT = """
import packaging
import torch

import elasticflow

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.zeros(64, 1))
loader = elasticflow.elastic(torch.utils.data.DataLoader(data, batch_size=8), model, optimizer)
print("script has", packaging.VERSION)
for epoch in loader.epochs(5):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


class Project:
    """A user's folder, and `eflow` in it."""

    def __init__(self, folder: Path, wheels: Path, pool: RunningPool) -> None:
        self.folder, self.pool = folder, pool
        folder.mkdir()
        options = f"--no-index\n--find-links {wheels}\n"
        own = (ROOT / "testbed" / "user_code" / JOB).read_text()
        files = {
            JOB: own,
            "script.py": SCRIPT,
            "old.txt": f"{options}packaging<25\n",
            "none.txt": f"{options}msgpack<1\n",
        }
        files["job.toml"] = f'target = "{JOB}"\nenvironment = "old.txt"\nclass = "best-effort"\n'
        for name, text in files.items():
            (folder / name).write_text(text)

    async def submit(self, *arguments: str) -> dict:
        """The end of the job; the decision if it did not begin."""
        where = {"NATS_URL": self.pool.url, "EF_POOL": POOL, "EF_TENANT": "lab", "PYTHONPATH": str(ROOT)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "elasticflow", "submit", *arguments, "--wait", "--timeout", "8m", "--json"),
            cwd=self.folder,
            env=kept | where,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
        assert out, err.decode()
        decision = json.loads(out)
        return decision.get("end", decision)

    def said_by(self, job_id: str) -> dict:
        """What its newest worker says; that of its profiling run has said it before."""
        *_, said = (line for line in self.log(job_id).splitlines() if line.startswith("own packages "))
        return json.loads(said.removeprefix("own packages "))

    def log(self, job_id: str) -> str:
        return "".join(file.read_text() for file in (self.pool.data_dir / "logs" / job_id).glob("*.log"))


@pytest.mark.parametrize("isolation", few_daily(["none", "required"], 1))
async def test_jobs_with_environments_of_their_own_train_beside_others(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isolation == "required":
        skip_without_namespaces()
    wheels = make_index(tmp_path / "wheels")
    monkeypatch.setenv("EF_ISOLATION", isolation)
    monkeypatch.setenv("EF_DATA_FOLDERS", str(wheels))
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        project = Project(tmp_path / "project", wheels, pool)
        best_effort = ("--class", "best-effort")
        ends = await asyncio.gather(
            project.submit("job.toml", "--name", "own"),
            project.submit(JOB, *best_effort, "--name", "nodes"),
            project.submit(JOB, *best_effort, "--environment", "none.txt", "--name", "impossible"),
        )
        own, nodes, impossible = ends
        assert (own["activity"], nodes["activity"]) == ("finished", "finished"), ends
        assert "its environment cannot be had: msgpack<1: the worker needs msgpack>=1.0.8" in impossible["error"], ends
        (environment,) = (pool.data_dir / "environments" / "lab").iterdir()
        said = project.said_by("own")
        assert (said["packaging"], said["prefix"]) == (OLD, str(environment / "venv"))
        assert said["is writable"] == (isolation == "none")
        assert project.said_by("nodes")["packaging"] == ""
        script = ("script.py", *best_effort, "--batch", "8", "--iterations", "20", "--environment", "old.txt")
        by_script = await project.submit(*script, "--name", "script")
        assert by_script["activity"] == "finished", by_script
        assert f"script has {OLD}\n" in project.log("script")
        assert list((pool.data_dir / "environments" / "lab").iterdir()) == [environment], "made once"
        entries = await pool.ledger()
    assert_sound(entries, pool.data_dir)
