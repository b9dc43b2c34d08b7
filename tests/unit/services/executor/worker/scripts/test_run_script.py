"""A script runs as `python` runs it, whatever its name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticflow.sdk.script import running_worker
from elasticflow.services.executor.worker.scripts.script_environment import run_script
from testbed.histories import spec
from tests.support.executor_process import ROOT

SCRIPT = """
import statistics, sys
import ef_beside
assert __name__ == "__main__" and sys.modules["__main__"].HOOK == HOOK
print(sys.argv, __file__, ef_beside.WHERE, hasattr(statistics, "median"), __package__)
"""


@pytest.fixture(autouse=True)
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("path", "argv", "meta_path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "function", "package"),
    [
        ("my-train.v2 (1).py", "my-train.v2 (1).py:__main__", None),
        ("statistics.py", "statistics:__torchrun__", None),
        ("queue.py", "queue:__main__", None),
        ("ef_package/train.py", "ef_package.train:__main__", "ef_package"),
    ],
)
def test_a_script_runs_whatever_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, function: str, package: str | None
) -> None:
    (tmp_path / "ef_package").mkdir()
    (tmp_path / "ef_package" / "__init__.py").touch()
    (tmp_path / "ef_beside.py").write_text("WHERE = __file__")
    (tmp_path / name).write_text(SCRIPT)
    for module in ("statistics", "ef_beside"):
        sys.modules.pop(module, None)
    run_script(spec(training_function=function, hyperparameters={"1": "--epochs"}), str(tmp_path), {}, HOOK="hook")
    arguments = [f"{tmp_path}/{name}", "--epochs"]
    assert capsys.readouterr().out == f"{arguments} {tmp_path}/{name} {tmp_path}/ef_beside.py True {package}\n"


@pytest.mark.parametrize("name", ["ef_absent", "ef_absent.py"])
def test_a_script_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="ef_absent"):
        run_script(spec(training_function=f"{name}:__main__"), str(tmp_path), {})


def test_elastic_in_a_child_process_of_the_script_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in one of torch.multiprocessing.spawn, which would train the whole job beside the pool."""
    monkeypatch.setenv("EF_SCRIPT_PROCESS", str(os.getpid()))
    assert running_worker() is None
    program = "import elasticflow; elasticflow.elastic([], None, None)"
    environment = {"PYTHONPATH": str(ROOT), "EF_SCRIPT_PROCESS": str(os.getpid())}
    ended = subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True)
    assert b"elastic() was called in a process that the script has started" in ended.stderr
