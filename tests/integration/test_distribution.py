"""The installed files: only `elasticflow`, each file once, the same from the wheel and from the wheel of the sdist."""

import os
import re
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest

from elasticflow import __version__
from tests.support.installation import ROOT, build, copy_of_checkout, install, python

FOLDERS = ("elasticflow", "shared", "services", "simulator")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    folder = tmp_path_factory.mktemp("distributions")
    checkout = copy_of_checkout(folder / "checkout")
    stale = checkout / "shared" / "removed"  # a removed package leaves such a folder
    (stale / "__pycache__").mkdir(parents=True)
    (stale / "__pycache__" / "module.pyc").touch()
    return build(checkout, folder)


def files_of_checkout() -> set[str]:
    """The files below `elasticflow`, by their installed paths."""
    found = {
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }
    names = {path.relative_to(ROOT).as_posix() for path in found}
    return {name if name.startswith("elasticflow/") else f"elasticflow/{name}" for name in names}


def test_a_wheel_holds_each_file_of_the_packages_once(distributions: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(distributions[1]).namelist()
    own = [name for name in names if not PurePosixPath(name).parts[0].endswith(".dist-info")]
    assert len(own) == len(set(own))
    assert set(own) == files_of_checkout()
    assert {"elasticflow/py.typed", "elasticflow/simulator/data/traces/small.csv"} <= set(own)


def test_an_sdist_holds_files_in_place_of_links(distributions: tuple[Path, Path]) -> None:
    with tarfile.open(distributions[0]) as archive:
        members = archive.getmembers()
    assert all(member.isfile() or member.isdir() for member in members)
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert files_of_checkout() | {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"} <= names
    assert not {name for name in names if name.startswith(("shared/", "services/", "simulator/", "tests/"))}


def test_the_metadata_of_a_wheel(distributions: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(distributions[1])
    info = f"elasticflow_training-{__version__}.dist-info"
    metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert wheel.read(f"{info}/top_level.txt").split() == [b"elasticflow"]
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.11", "Apache-2.0")
    description = str(metadata.get_payload())
    assert "main/docs/tutorial/gpus_over_time.png" in description
    assert not re.findall(r"\]\((?!https://)[^)]*\)", description), "an index shows it without the repository"
    always = [need for need in metadata.get_all("Requires-Dist") or () if "extra ==" not in need]
    assert {need.partition(">")[0] for need in always} == {
        *(
            "immutables",
            "msgpack",
            "nats-py[nkeys]",
            "packaging",
            "pathspec",
            "pydantic",
            "pynacl",
            "rich",
            "rpds-py",
            "structlog",
            "typer",
        )
    }


def test_an_installed_wheel_makes_only_elasticflow_importable(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    site = install(distributions[1], tmp_path / "site")
    assert {path.name for path in site.iterdir()} <= {
        *("bin", "elasticflow", f"elasticflow_training-{__version__}.dist-info", "__pycache__")
    }
    code = "import elasticflow, importlib.util as u; print(elasticflow.__file__, *map(u.find_spec, %r))"
    out = python("-P", "-c", code % (FOLDERS[1:],), cwd=tmp_path, PYTHONPATH=str(site))
    assert out.split() == [str(site / "elasticflow" / "__init__.py"), *["None"] * 3]
    script = site / "bin" / "eflow"
    assert "Deadline-guaranteed" in python(script, "--help", cwd=tmp_path, PYTHONPATH=str(site))
    assert os.access(script, os.X_OK)
    assert python(script, "--version", cwd=tmp_path, PYTHONPATH=str(site)) == f"eflow {__version__}\n"
