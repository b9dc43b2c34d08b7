"""A forked process that makes the Python environment of a job.

It has the rights of a worker: packages run code while they are built, and when the worker is imported to see if it can.

torch of the node, with its libraries for GPUs, is linked into the environment where the job asks for no other one.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from elasticflow.services.executor.worker.preparation.install_packages import (
    QUIET,
    CannotInstall,
    is_violated,
    parsed_line,
    replied,
    required_by,
    run_installer,
    written,
)
from elasticflow.shared.extras import DISTRIBUTION
from elasticflow.shared.messages.job_environment import OwnEnvironment
from elasticflow.shared.messages.worker_protocol.forking import (
    RESULT,
    FromPreparer,
    MakeEnvironment,
    Prepared,
)
from elasticflow.shared.runtime.process.environment_python import (
    interpreter_of,
    variables_in,
    virtual_environment_of,
)
from elasticflow.shared.runtime.process.run_module import module_command

# All that a worker imports, in the versions of pyproject.toml. It is the same in each environment.
WORKER_NEEDS = ("msgpack>=1.0.8", "numpy>=1.26", "psutil>=6.0", "pydantic>=2.12", "structlog>=24.4")
TORCH = "torch>=2.11,<2.16"
_NEEDS = {canonicalize_name(Requirement(line).name): line for line in (*WORKER_NEEDS, TORCH)}
_LINKED_WITH_TORCH = ("nvidia-", "cuda-", "triton", "pytorch-triton")  # gigabytes, which only torch uses
_DOWNLOADED = "python"  # the folder of an interpreter that uv has downloaded, in that of the environment
_LARGEST_SCRIPT = 1 << 20  # bytes; entry points are far smaller
_WORKER = "elasticflow.services.executor.worker"


def make_environment(order: MakeEnvironment) -> FromPreparer:
    result, work = Path(order.folder) / RESULT, Path(order.folder) / "work"

    def make_and_check() -> FromPreparer:
        work.mkdir()
        maker = EnvironmentMaker(result, work)
        maker.make(order.environment)
        maker.check_worker()
        move_references(result, Path(order.place))
        return Prepared()

    return replied(make_and_check)


# --- what the worker needs -----------------------------------------------------------------------------


def refused_by_worker(lines: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each line that no version satisfies with which a worker runs.

    Lines with markers and files are left to the installer, and then to `check_worker`.
    """
    for line in lines:
        asked = parsed_line(line)
        need = None if asked is None else _NEEDS.get(canonicalize_name(asked.name))
        if need is None or asked is None or asked.url is not None or asked.marker is not None:
            continue
        if _exclude_each_other(asked.specifier, Requirement(need).specifier):
            yield f"{line}: the worker needs {need}"


def _exclude_each_other(asked: SpecifierSet, needed: SpecifierSet) -> bool:
    """Whether certainly no version is in both. A lower bound of both, or a named version, is one if there is any."""
    if any(each.operator in (">", "!=", "===") or "*" in each.version for each in asked):
        return False
    named = [each.version for each in (*asked, *needed)]
    return not any(asked.contains(each, prereleases=True) and needed.contains(each, prereleases=True) for each in named)


def _others(lines: Iterable[str]) -> list[str]:
    """The lines without elasticflow itself, which is the node's, and with the libraries of its extras instead. An
    exported lock names these already."""
    parsed = [(line, parsed_line(line)) for line in lines]
    asked = {canonicalize_name(each.name): each for _, each in parsed if each is not None}
    others = [line for line, each in parsed if each is None or canonicalize_name(each.name) != DISTRIBUTION]
    ours = asked.get(canonicalize_name(DISTRIBUTION))
    libraries = _libraries_of(ours.extras) if ours is not None and ours.extras else []
    return [*others, *(str(each) for each in libraries if canonicalize_name(each.name) not in asked)]


def _libraries_of(extras: Iterable[str]) -> list[Requirement]:
    """What these extras of elasticflow need here; an extra may name others."""
    try:
        ours = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        return []
    always = set(map(str, required_by(ours)))
    found, left, seen = list[Requirement](), list(extras), set[str]()
    while left:
        extra = left.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in required_by(ours, [extra]):
            if canonicalize_name(requirement.name) == DISTRIBUTION:
                left += requirement.extras
            elif str(requirement) not in always:
                requirement.marker = None  # it holds
                found.append(requirement)
    return found


# --- the node's torch ----------------------------------------------------------------------------------


def linkable_torch(lines: Iterable[str]) -> list[Distribution]:
    """torch of this node with its libraries for GPUs; [] if the lines ask for another one, or its files are unknown."""
    try:
        torch = distribution("torch")
    except PackageNotFoundError:
        return []
    found, seen = {"torch": torch}, set[str]()
    left = [Requirement("torch")]
    while left:
        requirement = left.pop()
        if str(requirement) in seen:  # as one of several, with other extras
            continue
        seen.add(str(requirement))
        name = canonicalize_name(requirement.name)
        if name != "torch" and not name.startswith(_LINKED_WITH_TORCH):
            continue
        try:
            package = found.setdefault(name, distribution(name))
        except PackageNotFoundError:
            continue
        left += required_by(package, sorted(requirement.extras))
    versions = {name: each.version for name, each in found.items()}
    asked = [requirement for line in lines if (requirement := parsed_line(line)) is not None]
    is_other = any(is_violated(requirement, versions) for requirement in asked)
    return [] if is_other or any(each.files is None for each in found.values()) else list(found.values())


def make_stub(package: Distribution, folder: Path) -> Path:
    """A wheel with the metadata of an installed package and none of its files: an installer resolves with it."""
    name = f"{package.name.replace('-', '_')}-{package.version}"
    wheel = folder / f"{name}-py3-none-any.whl"
    info = f"{name}.dist-info"
    texts = {
        f"{info}/METADATA": package.read_text("METADATA") or "",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: elasticflow\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*texts, f"{info}/RECORD"))
    with ZipFile(wheel, "w") as archive:
        for path, text in {**texts, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def link_files(package: Distribution, site: Path) -> None:
    """Links to the files of an installed package; one link to a folder that is its own.

    Libraries for GPUs share a folder, to which only some of them count its __init__.py.
    """
    files = [file for file in package.files or () if _is_imported(file)]
    own = {file.parts[0] for file in files if file.parts[1:] == ("__init__.py",)}
    own = {name for name in own if (site / name).is_symlink() or not (site / name).exists()}
    for path in dict.fromkeys(PurePosixPath(file.parts[0]) if file.parts[0] in own else file for file in files):
        link = site / path
        if not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(str(package.locate_file(path)))


def _is_imported(file: PurePosixPath) -> bool:
    return file.parts[0] not in ("..", "__pycache__") and not file.parts[0].endswith(".dist-info")


# --- the environment -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvironmentMaker:
    """result: becomes the folder of the environment. work: for temporary files."""

    result: Path
    work: Path

    def make(self, wanted: OwnEnvironment) -> None:
        """Raises CannotInstall."""
        lines, constraints = _others(wanted.requirements), _others(wanted.constraints)
        if refused := list(refused_by_worker([*lines, *constraints])):
            raise CannotInstall(f"{'; '.join(refused)}; require a version that goes with it")
        linked = linkable_torch([*lines, *constraints]) if _is_that_of_the_node(wanted.python) else []
        if linked:
            try:
                return self._make(wanted.python, lines, constraints, linked)
            except CannotInstall as error:
                if not _is_about_torch(str(error)):
                    raise
                shutil.rmtree(self.result)  # some package needs another torch
        return self._make(wanted.python, lines, constraints, [])

    def check_worker(self) -> None:
        """Import the worker as its fork server does. Raises CannotInstall."""
        try:
            run_installer(
                module_command(_WORKER, "--check", python=interpreter_of(self.result)),
                self.work,
                variables_in(self.result, os.environ),
            )
        except CannotInstall as error:
            lines = str(error).partition("\n")[2]
            needs = ", ".join((*WORKER_NEEDS, TORCH))
            raise CannotInstall(f"the worker cannot be imported in it; it needs {needs}:\n{lines}") from None

    def _make(
        self, python: str, lines: Sequence[str], constraints: Sequence[str], linked: Sequence[Distribution]
    ) -> None:
        uv = _uv()
        self.result.mkdir()
        self._make_interpreter(python, uv)
        stubs = [f"{each.name} @ {make_stub(each, self.work).as_uri()}" for each in linked]
        needs = [*WORKER_NEEDS, *(stubs or [TORCH])]
        site = self._site_packages()
        if any("--hash" in line for line in lines):  # then each line of that file must have one
            self._install(lines, constraints, uv)
            found = [f"{each.name}=={each.version}" for each in _installed_in(site)]
            options = [line for line in lines if line.startswith("-")]
            self._install([*options, *needs], found, uv)
        else:
            self._install([*lines, *needs], constraints, uv)
        for package in linked:
            link_files(package, site)
        link = site / "elasticflow"  # for processes that users' code starts; workers import it by its path
        if not os.path.lexists(link):
            link.symlink_to(Path(str(sys.modules["elasticflow"].__file__)).parent)

    def _make_interpreter(self, python: str, uv: str | None) -> None:
        venv = str(virtual_environment_of(self.result))
        base: str = getattr(sys, "_base_executable", sys.executable)
        is_ours = _is_that_of_the_node(python)
        if uv is None:
            if not is_ours:
                raise CannotInstall(
                    f"Python {python} cannot be had: this node has Python {platform.python_version()}, and no uv, "
                    "which would find or download another one; install uv beside its executor (pip install uv), or ask "
                    f"for Python {'.'.join(platform.python_version_tuple()[:2])}"
                )
            return run_installer([base, "-I", "-m", "venv", "--without-pip", venv], self.work)
        try:
            options = ("--no-project", "--no-progress", "--color", "never")
            run_installer(
                [uv, "venv", "--python", base if is_ours else python, *options, venv], self.work, self._for_uv
            )
        except CannotInstall as error:
            raise CannotInstall(
                f"Python {python or platform.python_version()} cannot be had: uv finds none on this node that jobs "
                f"may see, and cannot download one; install it there, or ask for another version\n{error}"
            ) from None
        return None

    def _install(self, lines: Sequence[str], constraints: Sequence[str], uv: str | None) -> None:
        chosen = ["-r", str(written(self.work / "requirements.txt", lines))]
        if constraints:
            chosen += ["-c", str(written(self.work / "constraints.txt", constraints))]
        python = interpreter_of(self.result)
        if uv is not None:
            options = (
                "--compile-bytecode",
                "--index-strategy",
                "unsafe-best-match",
                "--no-progress",
                "--color",
                "never",
            )
            links = ("--link-mode", "hardlink" if _is_isolated() else "copy")
            run_installer(
                [uv, "pip", "install", "--python", python, *chosen, *links, *options], self.work, self._for_uv
            )
        elif find_spec("pip") is not None:
            pip = (sys.executable, "-P", "-m", "pip", "--python", python, "install")
            no_cache = ("--no-cache-dir",) if _is_isolated() else ()
            run_installer([*pip, *QUIET, *no_cache, *chosen], self.work)
        else:
            raise CannotInstall("this node has neither uv nor pip: install one beside its executor")

    @property
    def _for_uv(self) -> dict[str, str]:
        """Variables that say where uv writes. A worker's home folder is in memory, which torch would fill."""
        own = {"UV_PYTHON_INSTALL_DIR": str(self.result / _DOWNLOADED), **os.environ}
        return {**own, "UV_CACHE_DIR": str(self.work / "cache")} if _is_isolated() else own

    def _site_packages(self) -> Path:
        (found,) = virtual_environment_of(self.result).glob("lib/python3.*/site-packages")
        return found


def move_references(result: Path, place: Path) -> None:
    """Let the environment name its future place where it names the present one: links, and texts of its programs.

    uv links a Python that it has downloaded by a name without the third number.
    """
    here, there = os.fsencode(result), os.fsencode(place)
    venv = virtual_environment_of(result)
    downloaded = (each for each in (result / _DOWNLOADED).glob("*") if each.is_symlink())
    for file in (venv / "pyvenv.cfg", *(venv / "bin").iterdir(), *downloaded):
        if file.is_symlink():
            target = os.fsencode(os.readlink(file))
            if target.startswith(here + b"/"):
                file.unlink()
                file.symlink_to(os.fsdecode(there + target.removeprefix(here)))
        elif file.stat().st_size <= _LARGEST_SCRIPT:
            content = file.read_bytes()
            if here in content:
                file.write_bytes(content.replace(here, there))


def _installed_in(site: Path) -> Iterator[Distribution]:
    return (Distribution.at(folder) for folder in site.glob("*.dist-info"))


def _is_that_of_the_node(python: str) -> bool:
    """python: "", "3.12" or "3.12.4"."""
    here = platform.python_version_tuple()
    return python in ("", ".".join(here[:2]), ".".join(here))


def _is_about_torch(said: str) -> bool:
    """Whether an installer names torch in its error, and not only among what it has found."""
    steps = ("Processing", "Requirement already", "Collecting", "Looking", "Using cached", "Downloading")
    return any("torch" in line and not line.strip().startswith(steps) for line in said.splitlines())


def _is_isolated() -> bool:
    """Isolated processes have no home folder on a disk (`WorkerIsolation.environment`)."""
    return os.environ.get("HOME") == "/tmp"


def _uv() -> str | None:
    """On the PATH of the executor, or beside its Python."""
    return shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
