"""The combinations that are tried: each Python, the lowest and newest version of each direct dependency, and torch.

pyproject.toml names the dependencies and their bounds, constraints.txt the versions of all other tests.
"""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
NEWEST_PYTHON = "3.14"  # tried without an interpreter, too: no user may need a compiler there
EXTRAS = (
    *("embedded", "plot", "web", "joblib", "fsspec", "train", "adapters"),
    *("safetensors", "tensorboard", "mlflow", "wandb", "examples"),
)
TOOLS = (
    "hypothesis",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "rpds-py",
    "scipy",
)  # of dev: what the tests import


class Versions(StrEnum):
    """Which versions a combination installs."""

    CONSTRAINTS = "constraints"
    LOWEST = "lowest"
    NEWEST = "newest"
    WHEELS = "wheels"  # those of core dependencies are resolved, and nothing is installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """interpreter: None where this machine has none. torch: two numbers; "": the version of constraints.txt."""

    name: str
    python: str
    interpreter: Path | None
    versions: Versions
    torch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """needed_by: extras; "" is what each installation has. marker: where it is installed at all."""

    name: str
    specifier: SpecifierSet
    needed_by: tuple[str, ...]
    marker: Marker | None = None


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements() -> dict[str, list[Requirement]]:
    """By extra, those of the project that the combinations install; without the extras that an extra includes."""
    of_extras = project()["optional-dependencies"]
    lines = {"": project()["dependencies"], "server": of_extras["server"]}
    lines |= {extra: of_extras[extra] for extra in EXTRAS}
    found = {extra: [Requirement(line) for line in those] for extra, those in lines.items()}
    return {extra: [each for each in those if each.name != project()["name"]] for extra, those in found.items()}


def tools() -> list[Requirement]:
    return [each for each in map(Requirement, project()["optional-dependencies"]["dev"]) if each.name in TOOLS]


def dependencies() -> dict[str, Dependency]:
    """By normalized name: every direct dependency of a user's installation."""
    found: dict[str, Dependency] = {}
    for extra, those in requirements().items():
        for each in those:
            name = canonicalize_name(each.name)
            before = found[name].needed_by if name in found else ()
            found[name] = Dependency(
                name=name, specifier=each.specifier, needed_by=(*before, extra), marker=each.marker
            )
    return found


def constrained_versions() -> dict[str, str]:
    """By normalized name, the versions of constraints.txt."""
    lines = [line.partition("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line]
    return {canonicalize_name(name): version for name, _, version in lines}


def torch_bounds() -> tuple[str, str]:
    """The lowest and the newest release that pyproject.toml admits, as two numbers."""
    bounds = {each.operator: Version(each.version) for each in dependencies()["torch"].specifier}
    lowest, above = bounds[">="], bounds["<"]
    return f"{lowest.major}.{lowest.minor}", f"{above.major}.{above.minor - 1}"


def lowest_version(specifier: SpecifierSet) -> str:
    """Its floor, which has to be a version with wheels."""
    (floor,) = (each.version for each in specifier if each.operator == ">=")
    return floor


def interpreters() -> dict[str, Path]:
    """By two numbers, such as 3.12: the first one that runs of each Python that the project admits."""
    admitted = SpecifierSet(project()["requires-python"])
    found: dict[str, Path] = {}
    for path in _candidates():
        version = path.name.removeprefix("python")
        if version not in found and admitted.contains(version) and _runs(path, version):
            found[version] = path
    return dict(sorted(found.items(), key=lambda item: Version(item[0])))


def _candidates() -> Iterator[Path]:
    """Of PATH, then of pyenv, whose commands on PATH run the chosen versions only."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    folders = [*map(Path, os.get_exec_path()), *sorted(pyenv.glob("versions/*/bin"), reverse=True)]
    for folder in folders:
        yield from (path for path in folder.glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))


def _runs(path: Path, version: str) -> bool:
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    ran = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    return ran.stdout.strip() == version


def combinations(found: Mapping[str, Path], default: str) -> list[Combination]:
    """Not their product: each differs in one way from what all other tests run with. default: the Python of most."""
    promised = {line.rpartition(" ")[2] for line in project()["classifiers"] if re.search(r":: 3\.\d+$", line)}
    names = sorted({*promised, *found, NEWEST_PYTHON}, key=Version)
    pythons = [
        Combination(
            name=f"python-{python}",
            python=python,
            interpreter=found.get(python),
            versions=Versions.CONSTRAINTS if python in found else Versions.WHEELS,
        )
        for python in names
    ]
    here = {"python": default, "interpreter": found[default]}
    bounds = [Combination(name=each, versions=each, **here) for each in (Versions.LOWEST, Versions.NEWEST)]
    torches = [
        Combination(name=f"torch-{torch}", versions=Versions.CONSTRAINTS, torch=torch, **here)
        for torch in dict.fromkeys(torch_bounds())
    ]
    return [*pythons, *bounds, *torches]
