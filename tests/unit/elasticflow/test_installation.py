"""`import elasticflow` and the `eflow` command on other systems, and without extras."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import elasticflow
from elasticflow.shared.extras import DISTRIBUTION, MissingExtra, require_extra

ROOT = Path(__file__).parents[3]
UNIX_ONLY = ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty")
OF_SERVERS = ("highspy", "matplotlib", "numba", "numpy", "prometheus_client", "psutil", "scipy", "torch")
HIDE = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"
SUBMIT = """
import elasticflow, pathlib, sys
pathlib.Path("train.py").write_text("from elasticflow import ElasticJob\\nclass Train(ElasticJob): ...\\n")
from elasticflow.sdk.submission import load, with_code
job, code = load("train.py")
job.set_hyperparameter(global_batch_size=8).term_condition(max_iterations=9).set_deadline(within=60)
print(with_code(job, code).spec.training_function)
try:
    elasticflow.submit(elasticflow.Script("train.py"))
except (elasticflow.InvalidJob, elasticflow.PackagingFailed):
    pass
try:
    elasticflow.jobs()
except elasticflow.NoPoolHere as error:
    print(type(error).__name__)
from elasticflow.cli.app import Commands
list(Commands().values())
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("hidden", [UNIX_ONLY, OF_SERVERS], ids=["unix", "extras"])
def test_jobs_are_described_packed_and_submitted_without_what_servers_need(hidden, tmp_path, monkeypatch):
    monkeypatch.delenv("NATS_URL", raising=False)
    ran = python("-c", HIDE.format(names=hidden) + SUBMIT, cwd=tmp_path)
    assert (ran.stdout, ran.stderr) == ("train:Train\nNoPoolHere\n", "")


@pytest.mark.parametrize(
    ("hidden", "module", "arguments", "what", "extra"),
    [
        ("numba", "elasticflow.services.admission", [], "python -m elasticflow.services.admission", "server"),
        (
            "highspy",
            "elasticflow.services.admission",
            [],
            "python -m elasticflow.services.admission",
            "server",
        ),
        ("psutil", "elasticflow.services.executor", [], "python -m elasticflow.services.executor", "server"),
        ("torch", "elasticflow.services.executor", [], "an executor", "train"),
        (
            "prometheus_client",
            "elasticflow.services.monitor",
            [],
            "python -m elasticflow.services.monitor",
            "server",
        ),
        ("numba", "elasticflow", ["up"], "eflow up", "server"),
        ("torch", "elasticflow", ["up"], "eflow up with nodes", "train"),
        ("numpy", "elasticflow", ["simulate", "--trace", "small"], "eflow simulate", "server"),
        ("numpy", "elasticflow", ["replay", "some.ledger"], "eflow replay", "server"),
        ("numpy", "elasticflow.simulator", ["--help"], "python -m elasticflow.simulator", "server"),
    ],
)
def test_a_missing_extra_is_named_and_the_exit_code_is_2(hidden, module, arguments, what, extra, tmp_path):
    hide = HIDE.format(names=(hidden,))
    run = f"import runpy; sys.argv = ['x', *{arguments!r}]; runpy.run_module({module!r}, None, '__main__', True)"
    ran = python("-c", f"{hide}import elasticflow\n{run}", cwd=tmp_path)
    assert ran.returncode == 2
    assert f"{what} needs the extra `{extra}` ({hidden} is not installed): " in ran.stderr
    assert f"pip install --editable '.[{extra}]' in the checkout" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_an_extra_that_is_there_is_not_missed(monkeypatch):
    require_extra("server", "a test")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(MissingExtra, match="a test needs the extra `server`"):
        require_extra("server", "a test")


def test_a_python_that_is_too_old_is_named(tmp_path):
    ran = python("-c", "import sys; sys.version_info = (3, 10, 1); import elasticflow", cwd=tmp_path)
    assert ran.stderr.splitlines()[-1] == (
        f"ImportError: elasticflow needs Python 3.11 or newer; this is 3.10 ({sys.executable})"
    )


def test_make_names_a_python_that_is_too_old(tmp_path):
    old = tmp_path / "python"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10); $2"\n')
    old.chmod(0o755)
    command = ["make", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}", f"{tmp_path / 'venv'}/.packages"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "Python 3.11 or newer is needed: make PYTHON=python3.11" in ran.stderr


def test_the_version_and_the_name_are_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == elasticflow.__version__
    assert project["name"] == DISTRIBUTION


@pytest.mark.parametrize("other", ["elasticflow_training-0.0.9", "elasticflow-0.0.1"])
def test_two_packages_in_one_folder_are_refused_and_in_two_folders_are_not(tmp_path, other):
    """The other one is an older version, or the project of other people that has our module's name."""
    (tmp_path / "elasticflow").symlink_to(ROOT / "elasticflow")
    older, ours = tmp_path / "older", "elasticflow_training-0.1.0"
    for folder, installed in ((tmp_path, ours), (older, other)):
        info = folder / f"{installed}.dist-info"
        info.mkdir(parents=True)
        name, _, version = installed.replace("_", "-").rpartition("-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text("elasticflow/__init__.py,,\n")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(older)!r}]\n"
    code += "from elasticflow.shared.extras import require_one_version; require_one_version()"
    assert python("-P", "-c", code, cwd=tmp_path).returncode == 0
    (older / f"{other}.dist-info").rename(tmp_path / f"{other}.dist-info")
    ran = python("-P", "-c", code, cwd=tmp_path)
    assert f"several packages with a module elasticflow are installed in {tmp_path}: elasticflow" in ran.stderr


def test_the_version_is_told_without_the_libraries_of_tables_and_messages() -> None:
    """Its start is what a user waits for before each command."""
    loaded = "import sys; from elasticflow.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    loaded += "print([name for name in ('rich', 'pydantic', 'nats', 'numpy', 'structlog') if name in sys.modules])"
    ran = python("-c", loaded, "--version", cwd=ROOT)
    assert ran.stdout == f"eflow {elasticflow.__version__}\n[]\n"
