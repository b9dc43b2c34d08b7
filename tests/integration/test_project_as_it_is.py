"""A project of several files with variables and a requirement trains on a real pool as it is."""

import asyncio
import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from testbed.fault_evidence import assert_sound
from testbed.real_pool import POOL, RunningPool, running_pool
from tests.support.executor_process import ROOT
from tests.support.namespaces import skip_without_namespaces
from tests.support.rings import few_daily
from tests.support.wheels import make_wheel

WAIT_S = 240.0
TOKEN = "a-secret-of-the-user"
TOKEN_SEEN = f"token {hashlib.sha256(TOKEN.encode()).hexdigest()}\n"
TRAIN = """
import hashlib
import os
from pathlib import Path

import torch

import ef_tiny
import elasticflow
import settings
from beside import SIZE

HERE = Path(__file__).parent

class Own(elasticflow.ElasticJob):
    hyperparameters = {"global_batch_size": 8}
    max_iterations = 20
    job_class = "best_effort"

    def init_model(self):
        words = (HERE / "words.txt").read_text()
        assert words == open("src/words.txt").read()
        token = os.environ["TOKEN"]
        print("token", hashlib.sha256(token.encode()).hexdigest())
        if settings.DEPTH > 3:
            raise ValueError(f"401 for {token}")
        print("saw", os.environ["COLOUR"], settings.DEPTH, SIZE, words, ef_tiny.VERSION, Path(ef_tiny.__file__).parent)
        for name in ("copied", "mounted"):
            if f"EF_DATA_{name}" in os.environ:
                data = elasticflow.data_path(name)
                print("data", name, data, (data / "deep" / "w.txt").read_text(), os.access(data, os.W_OK))
        try:
            (Path(ef_tiny.__file__).parent / "mark").touch()
            print("packages are writable")
        except OSError:
            print("packages are read-only")
        return torch.nn.Linear(SIZE, 1)

    def init_dataset(self):
        return torch.utils.data.TensorDataset(torch.ones(64, SIZE), torch.zeros(64, 1))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss
"""
SCRIPT = """
import argparse, os
from pathlib import Path

import torch

import ef_tiny
import elasticflow
import settings

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.zeros(64, 1))
loader = elasticflow.elastic(torch.utils.data.DataLoader(data, batch_size=8), model, optimizer)
print("saw", os.environ["COLOUR"], settings.DEPTH, ef_tiny.VERSION, open("src/words.txt").read())
for epoch in loader.epochs(5):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
open("runs/by_path.txt", "w").write("written")
(Path(__file__).parent / "by_file.txt").write_text("written")
"""


class Project:
    """A user's folder, and `eflow` in it."""

    def __init__(self, folder: Path, wheels: Path, pool: RunningPool) -> None:
        self.folder, self.pool = folder, pool
        self.site = folder.parent / "site"  # what the user has installed: `eflow` imports the class
        with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
            wheel.extractall(self.site)
        files = {
            "src/train.py": TRAIN,
            "src/script.py": SCRIPT,
            "src/beside.py": "SIZE = 4\n",
            "src/words.txt": "some-words",
            "settings.py": "DEPTH = 3\n",
            "secret.key": "not this",
            ".eflowignore": "*.key\n",
            "requirements.txt": f"--no-index\n--find-links {wheels}\nef_tiny>=1  # local\n",
            "broken.txt": f"--no-index\n--find-links {wheels}\nef_tiny>=9\n",
            "job.toml": 'target = "src/train.py"\nworkdir = "."\nrequirement = "requirements.txt"\n'
            'secret = ["TOKEN"]\n'
            '[env]\nCOLOUR = "green"\n',
        }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        (folder / "runs").mkdir()

    async def submit(self, *arguments: str) -> dict:
        """The end of the job; the decision if it did not begin."""
        decision = await self.eflow("submit", *arguments, "--wait", "--timeout", "3m")
        return decision.get("end", decision)

    async def eflow(self, *arguments: str) -> dict:
        where = {"NATS_URL": self.pool.url, "EF_POOL": POOL, "EF_TENANT": "lab", "TOKEN": TOKEN}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "elasticflow", *arguments, "--json"),
            cwd=self.folder,
            env=kept | where | {"PYTHONPATH": os.pathsep.join((_python_path(), str(self.site)))},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(WAIT_S):
            out, err = await process.communicate()
        assert out, err.decode()
        return json.loads(out)

    def log(self, job_id: str) -> str:
        return "".join(file.read_text() for file in (self.pool.data_dir / "logs" / job_id).glob("*.log"))


def _python_path() -> str:
    """pathspec may be beside this checkout instead of in its environment."""
    return os.pathsep.join(dict.fromkeys([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))


@pytest.mark.parametrize("isolation", few_daily(["required", "none"], 1))
async def test_a_project_with_variables_and_a_requirement_trains(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isolation == "required":
        skip_without_namespaces()
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "ef_tiny", "1.5")
    sets = tmp_path / "sets" / "words"
    (sets / "deep").mkdir(parents=True)
    (sets / "deep" / "w.txt").write_text("many-words")
    for name, value in {"EF_ISOLATION": isolation, "EF_DATA_FOLDERS": f"{wheels}:{sets}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", _python_path())
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        project = Project(tmp_path / "project", wheels, pool)
        options = (
            *("--workdir", ".", "--requirement", "requirements.txt", "--env", "COLOUR=blue", "--secret", "TOKEN"),
            *("--data", f"copied=local://{sets}", "--data", f"mounted={sets}"),
        )
        by_class = await project.submit("src/train.py", *options, "--name", "by-class")
        assert by_class["activity"] == "finished", by_class
        (packages,) = (pool.data_dir / "packages" / "lab").iterdir()
        assert f"saw blue 3 4 some-words 1.5 {packages}\n" in project.log("by-class")
        (copy,) = (pool.data_dir / "data" / "lab").iterdir()
        is_writable = isolation != "required"
        assert f"data copied {copy / 'words'} many-words {is_writable}\n" in project.log("by-class")
        assert f"data mounted {sets} many-words {is_writable}\n" in project.log("by-class")
        assert ("packages are read-only" in project.log("by-class")) == (isolation == "required")
        assert TOKEN_SEEN in project.log("by-class")
        (code,) = (pool.data_dir / "code" / "lab").iterdir()
        assert not (code / "secret.key").exists()
        by_file = await project.submit("job.toml", "--name", "by-file", "--env", "COLOUR=red")
        assert by_file["activity"] == "finished", by_file
        assert "saw red 3 4 some-words 1.5" in project.log("by-file")
        script = ("src/script.py", *options, "--class", "best-effort", "--batch", "8", "--iterations", "20")
        by_script = await project.submit(*script, "--name", "by-script")
        assert by_script["activity"] == "finished", by_script
        assert "saw blue 3 1.5 some-words" in project.log("by-script")
        fetched = await project.eflow("fetch", "by-script")
        assert sorted(fetched["files"]) == ["by-script/files/runs/by_path.txt", "by-script/files/src/by_file.txt"]
        shutil.rmtree(project.folder / "by-script")
        assert list((pool.data_dir / "packages" / "lab").iterdir()) == [packages], "installed once"
        await pool.ended(["by-class", "by-file", "by-script"])
        profiled = await project.eflow("profile", "src/train.py", *options, "--batch", "16", "--gpus", "1")
        assert [point["num_gpus"] for point in profiled.get("points", ())] == [1], profiled
        (project.folder / "settings.py").write_text("DEPTH = 4\n")
        failed = await project.submit("src/train.py", *options, "--name", "failing")
        assert "ValueError: 401 for ***" in failed["error"], failed
        entries = await pool.ledger()
    assert holders_of(TOKEN, tmp_path / "ledger.eflow", pool.data_dir) == []  # at rest: no process moves files now
    assert_sound(entries, pool.data_dir)


def holders_of(text: str, *paths: Path) -> list[Path]:
    """Files that have this text: exports, logs, the store of NATS, archives of code."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    assert len(files) > 10
    return [file for file in files if text.encode() in file.read_bytes()]


@pytest.mark.nightly("training/test_installed_packages.py has it without a pool")
async def test_a_requirement_that_does_not_resolve_fails_its_job_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "ef_tiny", "1.5")
    monkeypatch.setenv("PYTHONPATH", _python_path())
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        project = Project(tmp_path / "project", wheels, pool)
        options = ("--workdir", ".", "--env", "COLOUR=blue", "--secret", "TOKEN")
        before = pool.pids()
        failed = await project.submit("src/train.py", *options, "--requirement", "broken.txt", "--name", "broken")
        assert failed["decision"] == "failed", failed
        assert "its requirements cannot be had: " in failed["error"]
        assert "No matching distribution found for ef_tiny>=9" in failed["error"]
        assert pool.pids() == before
        for name, uri, said in (
            (
                "absent",
                "local:///absent/set",
                "its data words (local:///absent/set) cannot be had: it does not exist: ",
            ),
            ("library", "s3://bucket/set", "s3fs to access S3; install it beside the executor of each node"),
            ("path", "/absent/set", "its data words: /absent/set is not there on this node"),
        ):
            failed = await project.submit("src/train.py", *options, "--data", f"words={uri}", "--name", name)
            assert failed["decision"] == "failed", failed
            assert said in failed["error"]
        good = await project.submit("src/train.py", *options, "--requirement", "requirements.txt", "--name", "good")
        assert good["activity"] == "finished", good


async def test_uv_installs_requirements_where_executors_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
    if uv is None:
        pytest.skip("uv is not installed")
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "ef_tiny", "1.5")
    monkeypatch.setenv("PYTHONPATH", _python_path())
    monkeypatch.setenv("PATH", f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}")
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        project = Project(tmp_path / "project", wheels, pool)
        options = ("--workdir", ".", "--env", "COLOUR=blue", "--secret", "TOKEN")
        for name in ("first", "second"):
            good = await project.submit("src/train.py", *options, "--requirement", "requirements.txt", "--name", name)
            assert good["activity"] == "finished", good
        (packages,) = (pool.data_dir / "packages" / "lab").iterdir()
        assert (packages / "ef_tiny-1.5.dist-info" / "INSTALLER").read_text().strip() == "uv"
        failed = await project.submit("src/train.py", *options, "--requirement", "broken.txt", "--name", "broken")
        assert failed["decision"] == "failed", failed
        assert "its requirements cannot be had: uv " in failed["error"], failed
        assert "ef-tiny>=9" in failed["error"]
