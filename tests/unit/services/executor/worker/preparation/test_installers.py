"""Packages of jobs: what pip or uv installs, and which versions are refused. Without a network."""

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

import packaging
import pytest

from elasticflow.services.executor.worker.preparation import install_packages
from elasticflow.services.executor.worker.preparation.install_packages import (
    CannotInstall,
    install,
    loaded_packages,
    refused_lines,
    violated_in,
)
from tests.support.wheels import from_folder, make_wheel

# looked for before a test hides it
REAL_UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
LOADED = {"numpy": "2.4.6", "torch": "2.13.0+cpu"}


@pytest.fixture(autouse=True)
def only_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr(install_packages.shutil, "which", lambda _: None)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def installed(tmp_path: Path, *requirements: str, loaded: dict[str, str] | None = None) -> list[str]:
    """Names in the folder, after an installation from the wheels in tmp_path/wheels."""
    target, work = tmp_path / "target", tmp_path / "work"
    target.mkdir()
    work.mkdir()
    install(from_folder(tmp_path / "wheels", *requirements), target, work, loaded or {})
    return sorted(path.name for path in target.iterdir() if path.suffix == ".py")


def test_a_package_is_installed_with_what_it_needs(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "ef_first", requires=("ef_second>=1", "packaging"))
    make_wheel(tmp_path / "wheels", "ef_second", "2.0")
    make_wheel(tmp_path / "wheels", "packaging", "99.0")
    assert installed(tmp_path, "ef_first==1.0") == ["ef_first.py", "ef_second.py"], "packaging is there already"


def test_an_exact_file_is_installed_by_its_hash(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "ef_first")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    loaded = {"packaging": packaging.__version__}
    assert installed(tmp_path, f"ef_first==1.0 --hash=sha256:{digest}", loaded=loaded) == ["ef_first.py"]


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "ef_first")
    with pytest.raises(CannotInstall, match="DO NOT MATCH THE HASHES"):
        installed(tmp_path, f"ef_first==1.0 --hash=sha256:{'0' * 64}")


def test_what_does_not_resolve_is_explained_by_the_last_lines_of_pip(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "ef_first")
    with pytest.raises(CannotInstall) as failed:
        installed(tmp_path, "ef_first==2.0")
    first, *rest = str(failed.value).splitlines()
    assert first == "pip ended with exit code 1:"
    assert any("No matching distribution found for ef_first==2.0" in line for line in rest)
    assert len(rest) <= 15


def test_a_loaded_version_constrains_what_is_resolved(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "ef_first", "2.0", requires=("packaging<1",))
    make_wheel(tmp_path / "wheels", "ef_first", "1.0")
    make_wheel(tmp_path / "wheels", "packaging", "0.5")
    loaded = {"packaging": packaging.__version__}
    assert installed(tmp_path, "ef_first", loaded=loaded) == ["ef_first.py"]
    assert "1.0" in (tmp_path / "target" / "ef_first.py").read_text(), "the newer one needs another packaging"


def test_uv_is_used_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "uv"
    uv.write_text('#!/bin/sh\necho "$@" > "$0.said"; cat "$8" > "$0.file"; echo no such package; exit 2\n')
    uv.chmod(0o755)
    monkeypatch.setattr(install_packages.shutil, "which", lambda _: str(uv))
    with pytest.raises(CannotInstall, match="uv ended with exit code 2:\nno such package"):
        installed(tmp_path, "ef_first", loaded=LOADED)
    said = (tmp_path / "uv.said").read_text()
    assert said.startswith(f"pip install --target {tmp_path}/target -r {tmp_path}/work/requirements.txt --override ")
    assert f"--python {sys.executable} --link-mode copy" in said
    excluded = (tmp_path / "uv.file").read_text().splitlines()
    assert excluded == ["numpy ; sys_platform == 'never'", "torch ; sys_platform == 'never'"]


@pytest.mark.skipif(REAL_UV is None, reason="this machine has no uv")
def test_uv_itself_installs_what_is_missing_and_nothing_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "wheels", "ef_first", requires=("ef_second>=1", "packaging"))
    make_wheel(tmp_path / "wheels", "ef_second", "2.0")
    make_wheel(tmp_path / "wheels", "packaging", "99.0")
    monkeypatch.setattr(install_packages.shutil, "which", lambda _: REAL_UV)
    loaded = {"packaging": packaging.__version__}
    assert installed(tmp_path, "ef_first==1.0", loaded=loaded) == ["ef_first.py", "ef_second.py"]
    for name in ("target", "work"):
        (tmp_path / name).rename(tmp_path / f"{name}-before")
    with pytest.raises(CannotInstall, match="uv ended with exit code 1:\n"):
        installed(tmp_path, "ef_first==2.0", loaded=loaded)


def test_a_node_without_an_installer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_packages, "find_spec", lambda _: None)
    with pytest.raises(CannotInstall, match="neither uv nor pip"):
        installed(tmp_path, "ef_first")


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("numpy<2", True),
        ("NumPy==1.26.4", True),
        ("torch @ https://host/torch-9-py3-none-any.whl", True),
        ("numpy>=2", False),
        ("torch==2.13.0", False),
        ("numpy<2 ; python_version < '3'", False),
        ("einops", False),
        ("--index-url https://host/simple", False),
    ],
)
def test_another_version_of_a_loaded_package_is_refused(line: str, refused: bool) -> None:
    said = refused_lines([line], LOADED)
    assert bool(said) == refused
    if "numpy" in line and refused:
        assert said == [f"{line}: workers have loaded numpy 2.4.6"]


def test_installed_packages_must_go_with_the_loaded_ones(tmp_path: Path) -> None:
    for name, requires in (("ef_old", ("numpy<2", "tqdm")), ("ef_new", ("numpy>=2",)), ("torch", ())):
        zipfile.ZipFile(make_wheel(tmp_path / "wheels", name, requires=requires)).extractall(tmp_path / "target")
    assert sorted(violated_in(tmp_path / "target", LOADED)) == [
        "ef_old 1.0 needs numpy<2, and workers have loaded 2.4.6",
        "torch 1.0 would replace the one that workers have loaded",
    ]


def test_loaded_packages_are_those_of_the_modules_and_all_that_they_require() -> None:
    loaded = loaded_packages(["pydantic", "pydantic.fields", "os"])
    assert {"pydantic", "pydantic-core", "typing-extensions"} <= loaded.keys()
    assert "pytest" not in loaded
