"""The packages that a worker has loaded before its job is known: no job can have another version of them."""

import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from elasticflow.shared.messages.worker_protocol.forking import (
    RESULT,
    FromPreparer,
    InstallPackages,
    NotPrepared,
    Prepared,
)

Versions = Mapping[str, str]  # by canonical name


def loaded_packages(modules: Iterable[str] = sys.modules) -> Versions:
    """The versions of the distributions of these modules, and of all that they require: torch, numpy, ..."""
    owners = packages_distributions()
    left = [owner for module in tuple(modules) for owner in owners.get(module, ())]
    versions: dict[str, str] = {}
    while left:
        name = canonicalize_name(left.pop())
        try:
            found = versions.get(name) or distribution(name)
        except PackageNotFoundError:  # on this platform it is not needed
            continue
        if isinstance(found, Distribution):
            versions[name] = found.version
            left += [requirement.name for requirement in required_by(found)]
    return versions


def refused_lines(lines: Iterable[str], loaded: Versions) -> list[str]:
    """A sentence for each requirement that asks for another version of a loaded package."""
    return [
        f"{line}: workers have loaded {requirement.name} {loaded[canonicalize_name(requirement.name)]}"
        for line in lines
        if (requirement := parsed_line(line)) is not None and is_violated(requirement, loaded)
    ]


def violated_in(folder: Path, loaded: Versions) -> list[str]:
    """A sentence for each package in this folder that needs another version of a loaded package, or is one."""
    found: list[str] = []
    for package in distributions(path=[str(folder)]):
        if canonicalize_name(package.name) in loaded:
            found.append(f"{package.name} {package.version} would replace the one that workers have loaded")
        found += [
            f"{package.name} {package.version} needs {requirement}, and workers have loaded "
            f"{loaded[canonicalize_name(requirement.name)]}"
            for requirement in required_by(package)
            if is_violated(requirement, loaded)
        ]
    return found


def required_by(package: Distribution, extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """What it requires on this machine, with these extras."""
    chosen = ("", *extras)
    for line in package.requires or ():
        requirement = parsed_line(line)
        if requirement is not None and any(_is_for(requirement, extra) for extra in chosen):
            yield requirement


def _is_for(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def parsed_line(line: str) -> Requirement | None:
    """The requirement in a line; None for an option of pip."""
    try:
        return Requirement(line.partition(" --")[0])
    except InvalidRequirement:
        return None


def is_violated(requirement: Requirement, loaded: Versions) -> bool:
    version = loaded.get(canonicalize_name(requirement.name))
    if version is None or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
        return False
    return requirement.url is not None or not requirement.specifier.contains(version, prereleases=True)


# --- installers ----------------------------------------------------------------------------------------
# uv or pip as a child process: installs requirements into a folder, but for packages that workers have loaded.

_LAST_LINES = 15  # of an installer that failed
_MAX_LINE = 400  # characters
QUIET = ("--no-input", "--no-color", "--progress-bar", "off", "--disable-pip-version-check")


class CannotInstall(Exception):
    """The message says why, and ends with the last lines of the installer if it ran."""


def install(lines: Sequence[str], target: Path, work: Path, loaded: Versions) -> None:
    """lines: of a requirements file. work: a folder for temporary files. Raises CannotInstall."""
    file = written(work / "requirements.txt", lines)
    if uv := shutil.which("uv"):
        _install_with_uv(uv, file, target, work, loaded)
    elif find_spec("pip") is not None:
        _install_with_pip(lines, file, target, work, loaded)
    else:
        raise CannotInstall("this node has neither uv nor pip: install one beside its executor")


def _install_with_uv(uv: str, file: Path, target: Path, work: Path, loaded: Versions) -> None:
    """A target is an empty environment for uv. Loaded packages are excluded by a condition that never holds."""
    excluded = written(work / "loaded.txt", [f"{name} ; sys_platform == 'never'" for name in loaded])
    options = ("--python", sys.executable, "--link-mode", "copy", "--no-progress", "--color", "never")
    run_installer(
        [uv, "pip", "install", "--target", str(target), "-r", str(file), "--override", str(excluded), *options], work
    )


def _install_with_pip(lines: Sequence[str], file: Path, target: Path, work: Path, loaded: Versions) -> None:
    """Let pip only resolve at first: with a target, it installs again what is installed, torch too."""
    pip = [sys.executable, "-P", "-m", "pip", "install", *QUIET]
    constraints = written(work / "loaded.txt", [f"{name}=={version}" for name, version in loaded.items()])
    report = work / "report.json"
    run_installer([*pip, "--dry-run", "--report", str(report), "-r", str(file), "-c", str(constraints)], work)
    missing = _pinned(json.loads(report.read_text())["install"])
    if missing:
        options = [line for line in lines if line.startswith("-")]
        exact = written(work / "exact.txt", [*options, *missing])
        run_installer([*pip, "--no-deps", "--target", str(target), "-r", str(exact)], work)


def _pinned(found: list[dict[str, Any]]) -> list[str]:
    """The packages of a report of pip, each in the version that it has resolved; with hashes if all have one."""
    sources = [package["download_info"] for package in found]
    hashes = [source.get("archive_info", {}).get("hashes", {}).get("sha256", "") for source in sources]
    pinned = [
        f"{package['metadata']['name']} @ {_url(source)}"
        if package["is_direct"]
        else f"{package['metadata']['name']}=={package['metadata']['version']}"
        for package, source in zip(found, sources, strict=True)
    ]
    if not all(hashes):
        return pinned
    return [f"{line} --hash=sha256:{digest}" for line, digest in zip(pinned, hashes, strict=True)]


def _url(source: dict[str, Any]) -> str:
    repository = source.get("vcs_info")
    url = f"{repository['vcs']}+{source['url']}@{repository['commit_id']}" if repository else source["url"]
    return f"{url}#subdirectory={folder}" if (folder := source.get("subdirectory")) else url


def written(file: Path, lines: Sequence[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def run_installer(command: Sequence[str], work: Path, variables: Mapping[str, str] | None = None) -> None:
    """Raises CannotInstall. variables: by default those of this process."""
    log = work / "installer.log"
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            cwd=work,
            env={**(os.environ if variables is None else variables), "TMPDIR": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode:
        said = [line[:_MAX_LINE] for line in log.read_text(errors="replace").splitlines() if line.strip()]
        name = "uv" if Path(command[0]).name == "uv" else "pip"
        raise CannotInstall("\n".join([f"{name} ended with exit code {ended.returncode}:", *said[-_LAST_LINES:]]))


# --- install packages ----------------------------------------------------------------------------------
# A forked process that installs the packages of a job. It has the rights of a worker: packages run code of their own
# while they are built.

_MAX_TEXT = 8_000  # characters of an error


def install_packages(order: InstallPackages) -> FromPreparer:
    target, work = Path(order.folder) / RESULT, Path(order.folder) / "work"

    def install_all() -> FromPreparer:
        for folder in (target, work):
            folder.mkdir()
        loaded = loaded_packages()
        if refused := refused_lines(order.requirements, loaded):
            return _refusal(refused)
        install(order.requirements, target, work, loaded)
        violated = violated_in(target, loaded)
        return _refusal(violated) if violated else Prepared()

    return replied(install_all)


def _refusal(problems: list[str]) -> NotPrepared:
    said = "; ".join(problems)
    return NotPrepared(error=f"{said}; require a version that goes with it"[:_MAX_TEXT])


def replied(prepare: Callable[[], FromPreparer]) -> FromPreparer:
    """What it returns, or why it failed."""
    try:
        return prepare()
    except CannotInstall as error:
        return NotPrepared(error=str(error)[-_MAX_TEXT:])
    except Exception as error:  # e.g. a report, or metadata, that this version cannot read
        traceback.print_exc()
        return NotPrepared(error=f"{type(error).__name__}: {error}"[:_MAX_TEXT])
