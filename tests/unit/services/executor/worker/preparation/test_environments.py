"""Environments of jobs: what a worker refuses, what is linked of the node, and what installers are told. The installers
themselves run in tests/training/test_own_environments.py."""

import os
import platform
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor.worker.preparation import make_environment
from elasticflow.services.executor.worker.preparation.install_packages import CannotInstall
from elasticflow.services.executor.worker.preparation.make_environment import (
    TORCH,
    WORKER_NEEDS,
    EnvironmentMaker,
    link_files,
    linkable_torch,
    make_stub,
    move_references,
    refused_by_worker,
)
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.runtime.process.environment_python import interpreter_of, variables_in, virtual_environment_of
from tests.support.executor_process import ROOT
from tests.support.wheels import make_wheel

HERE = platform.python_version()
OTHER = "3.12" if not HERE.startswith("3.12") else "3.13"


class Installer:
    """In place of uv and pip: keeps what it is told, makes what `venv` makes, and may refuse."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.said, self.files = refuses, list[str](), list[list[str]]()

    def run(self, command: Any, work: Path, variables: Any = None) -> None:
        self.said.append(" ".join(map(str, command)))
        if "venv" in command:
            (Path(command[-1]) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        elif "install" in command:
            self.files.append((work / "requirements.txt").read_text().splitlines())
            if self.refuses and any("torch @" in line for line in self.files[-1]):
                raise CannotInstall(f"uv ended with exit code 1:\n{self.refuses}")


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvironmentMaker:
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(make_environment.shutil, "which", lambda *_, **__: "/bin/uv")
    return EnvironmentMaker(tmp_path / "result", tmp_path / "work")


def told(monkeypatch: pytest.MonkeyPatch, refuses: str = "") -> Installer:
    installer = Installer(refuses)
    monkeypatch.setattr(make_environment, "run_installer", installer.run)
    return installer


def test_a_worker_needs_what_the_project_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    assert {*WORKER_NEEDS, TORCH} <= set(declared)


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("msgpack<1", True),
        ("Pydantic==1.10.*", False),  # left to the installer
        ("pydantic==1.10.2", True),
        ("pydantic<2.12", True),
        ("pydantic<=2.12", False),
        ("torch==2.9.0", True),
        ("torch==2.16.0", True),
        ("torch>=2.16", True),
        ("torch>2.10", False),
        ("torch==2.13.0", False),
        ("torch~=2.12", False),
        ("torch @ https://host/torch-9-py3-none-any.whl", False),
        ("torch==2.9 ; python_version < '3'", False),
        ("numpy<2", False),
        ("packaging<25", False),
        ("--no-index", False),
    ],
)
def test_a_version_with_which_no_worker_runs_is_refused_by_name(line: str, refused: bool) -> None:
    said = list(refused_by_worker([line]))
    assert bool(said) == refused
    if line == "torch==2.9.0":
        assert said == ["torch==2.9.0: the worker needs torch>=2.11,<2.16"]


def test_the_torch_of_the_node_is_linked_unless_another_one_is_asked_for() -> None:
    names = [package.name for package in linkable_torch(["numpy<2", "torch>=2.11"])]
    assert names[0] == "torch"
    assert "sympy" not in names, "any version does"
    assert linkable_torch(["torch==2.11.0rc1"]) == []


def test_the_libraries_of_a_torch_for_gpus_are_linked_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {
        "torch": (
            "cuda-toolkit[cufft]==13.0 ; sys_platform != 'absent'",
            "sympy",
            "triton==3 ; sys_platform == 'absent'",
        ),
        "cuda-toolkit": ("nvidia-cufft ; extra == 'cufft'", "nvidia-cublas ; extra == 'cublas'", "nvidia-absent"),
        "nvidia-cufft": ("cuda-toolkit",),
        "nvidia-cublas": (),
    }
    for name, requires in needs.items():
        zipfile.ZipFile(make_wheel(tmp_path / "wheels", name.replace("-", "_"), requires=requires)).extractall(
            tmp_path / "site"
        )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert sorted(package.name for package in linkable_torch([])) == ["cuda_toolkit", "nvidia_cufft", "torch"]


def test_a_stub_and_links_stand_for_an_installed_package(tmp_path: Path) -> None:
    site, mine = tmp_path / "node", tmp_path / "mine"
    files = {
        "whole/__init__.py": "",
        "whole/deep/more.py": "",
        "shared/part/lib.so": "",
        "single.py": "",
        "__pycache__/single.pyc": "",
        "whole-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: whole\nVersion: 1.0\nRequires-Dist: other\n",
    }
    for name, text in {**files, "whole-1.0.dist-info/RECORD": "".join(f"{name},,\n" for name in files)}.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (mine / "shared" / "part").mkdir(parents=True)
    package = Distribution.at(site / "whole-1.0.dist-info")
    link_files(package, mine)
    link_files(package, mine)
    links = sorted(str(path.relative_to(mine)) for path in mine.rglob("*") if path.is_symlink())
    assert links == ["shared/part/lib.so", "single.py", "whole"]
    assert (mine / "whole" / "deep" / "more.py").exists()
    stub = make_stub(package, tmp_path)
    assert stub.name == "whole-1.0-py3-none-any.whl"
    (found,) = Distribution.discover(name="whole", path=[str(stub)])
    assert (found.version, found.requires) == ("1.0", ["other"])


def test_a_folder_that_packages_share_has_the_files_of_all_of_them(tmp_path: Path) -> None:
    """Only some of them count its __init__.py."""
    node = tmp_path / "node"
    files = {"first": ["shared/first/lib.so"], "second": ["shared/__init__.py", "shared/second/lib.so"]}
    for name, of_package in files.items():
        for file in of_package:
            (node / file).parent.mkdir(parents=True, exist_ok=True)
            (node / file).touch()
        info = node / f"{name}-1.dist-info"
        info.mkdir()
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in of_package))
    for order in (list(files), list(reversed(files))):
        site = tmp_path / order[0]
        site.mkdir()
        for name in order:
            link_files(Distribution.at(node / f"{name}-1.dist-info"), site)
        assert all((site / file).exists() for of_package in files.values() for file in of_package)


def test_an_installer_gets_the_lines_of_the_job_and_those_of_the_worker(maker, monkeypatch) -> None:
    installer = told(monkeypatch)
    maker.make(OwnEnvironment(requirements=("numpy<2", "elasticflow-training"), constraints=("einops==0.8",)))
    venv, install = installer.said
    assert venv.startswith(f"/bin/uv venv --python {sys._base_executable} ")  # pyright: ignore[reportAttributeAccessIssue]
    assert install.startswith(f"/bin/uv pip install --python {interpreter_of(maker.result)} -r ")
    assert " -c " in install
    (lines,) = installer.files
    assert lines[: 1 + len(WORKER_NEEDS)] == ["numpy<2", *WORKER_NEEDS]
    assert lines[1 + len(WORKER_NEEDS)].startswith("torch @ file:///"), "a stub: it is linked"
    site = virtual_environment_of(maker.result) / "lib" / "python3.11" / "site-packages"
    assert (site / "torch").is_symlink()
    assert (site / "elasticflow" / "__init__.py").exists(), "for processes that users' code starts"


def test_the_libraries_of_an_extra_of_elasticflow_are_installed(maker, tmp_path, monkeypatch) -> None:
    """elasticflow itself is the node's, but its other packages are not in the environment."""
    needs = (
        "structlog>=24.4",
        "elasticflow-training[server] ; extra == 'train'",
        "fsspec>=2024.6 ; extra == 'train'",
        "highspy>=1.8 ; extra == 'server'",
        "wandb<1 ; extra == 'wandb'",
    )
    wheel = make_wheel(tmp_path / "wheels", "elasticflow_training", requires=needs)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    installer = told(monkeypatch)
    maker.make(OwnEnvironment(requirements=("elasticflow-training[train]>=0.1", "einops")))
    (lines,) = installer.files
    assert lines[:3] == ["einops", "fsspec>=2024.6", "highspy>=1.8"]
    assert "elasticflow-training" not in " ".join(lines)


def test_of_lines_with_hashes_only_the_jobs_own_have_any(maker, monkeypatch) -> None:
    installer = told(monkeypatch)
    maker.make(OwnEnvironment(requirements=("--no-index", "einops==0.8 --hash=sha256:00")))
    first, second = installer.files
    assert first == ["--no-index", "einops==0.8 --hash=sha256:00"]
    assert second[: 1 + len(WORKER_NEEDS)] == ["--no-index", *WORKER_NEEDS]


def test_a_package_that_needs_another_torch_gets_it(maker, monkeypatch) -> None:
    conflict = "torchvision==0.26 depends on torch==2.11.0"
    installer = told(monkeypatch, refuses=conflict)
    maker.make(OwnEnvironment(requirements=("torchvision==0.26",)))
    assert installer.files[-1][-1] == TORCH
    site = virtual_environment_of(maker.result) / "lib" / "python3.11" / "site-packages"
    assert not (site / "torch").exists()


def test_what_has_nothing_to_do_with_torch_is_not_tried_again(maker, monkeypatch) -> None:
    installer = told(monkeypatch, refuses="Processing ./torch-2.13.0-py3-none-any.whl\nno ef_tiny==9")
    with pytest.raises(CannotInstall, match="no ef_tiny==9"):
        maker.make(OwnEnvironment(requirements=("ef_tiny==9",)))
    assert len(installer.files) == 1


def test_another_python_has_its_own_torch(maker, monkeypatch) -> None:
    installer = told(monkeypatch)
    maker.make(OwnEnvironment(python=OTHER))
    assert f"/bin/uv venv --python {OTHER} " in installer.said[0]
    assert installer.files == [[*WORKER_NEEDS, TORCH]]


def test_a_python_that_uv_cannot_get_is_named(maker, monkeypatch) -> None:
    def refuse(*_: Any) -> None:
        raise CannotInstall("uv ended with exit code 2:\nno download")

    monkeypatch.setattr(make_environment, "run_installer", refuse)
    with pytest.raises(CannotInstall) as failed:
        maker.make(OwnEnvironment(python=OTHER))
    said = str(failed.value).splitlines()
    assert said[0].startswith(f"Python {OTHER} cannot be had: uv finds none on this node that jobs may see")
    assert said[-1] == "no download"


def test_without_uv_there_is_the_python_of_the_node_only(maker, monkeypatch) -> None:
    monkeypatch.setattr(make_environment.shutil, "which", lambda *_, **__: None)
    with pytest.raises(CannotInstall) as failed:
        maker.make(OwnEnvironment(python=OTHER))
    assert f"Python {OTHER} cannot be had: this node has Python {HERE}, and no uv" in str(failed.value)
    os.rmdir(maker.result)
    installer = told(monkeypatch)
    maker.make(OwnEnvironment(python=HERE))
    assert " -m venv --without-pip " in installer.said[0]
    assert f" -m pip --python {interpreter_of(maker.result)} install " in installer.said[1]


def test_an_environment_names_its_place_once_it_is_there(tmp_path: Path) -> None:
    result, place = tmp_path / ".unfinished" / "result", tmp_path / "digest"
    programs = virtual_environment_of(result) / "bin"
    programs.mkdir(parents=True)
    (programs.parent / "pyvenv.cfg").write_text(f"home = {result}/python/bin\n")
    downloaded = result / "python"
    (downloaded / "cpython-3.12.4" / "bin").mkdir(parents=True)
    (downloaded / "cpython-3.12.4" / "bin" / "python3.12").touch()
    (downloaded / "cpython-3.12").symlink_to(downloaded / "cpython-3.12.4")  # as uv does
    (programs / "python").symlink_to(downloaded / "cpython-3.12" / "bin" / "python3.12")
    (programs / "python3").symlink_to("python")
    (programs / "tool").write_text(f"#!{programs}/python\n")
    move_references(result, place)
    assert (programs.parent / "pyvenv.cfg").read_text() == f"home = {place}/python/bin\n"
    assert os.readlink(programs / "python") == f"{place}/python/cpython-3.12/bin/python3.12"
    assert os.readlink(programs / "python3") == "python"
    assert (programs / "tool").read_text() == f"#!{place}/venv/bin/python\n"
    result.rename(place)
    assert os.path.exists(interpreter_of(place))


def test_nothing_of_the_nodes_packages_is_named_to_a_process_of_an_environment() -> None:
    inherited = {"PYTHONPATH": "/node", "PYTHONHOME": "/node", "PATH": "/bin", "LANG": "C"}
    assert variables_in(Path("/e"), inherited) == {
        "PATH": "/e/venv/bin:/bin",
        "LANG": "C",
        "VIRTUAL_ENV": "/e/venv",
        "PYTHONNOUSERSITE": "1",
    }
