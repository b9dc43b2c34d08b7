"""uv or pip as a child process: installs requirements into a folder, but for packages that workers have loaded."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from elasticflow.services.executor.worker.packages.loaded_packages import Versions

_LAST_LINES = 15  # of an installer that failed
_MAX_LINE = 400  # characters
_QUIET = ("--no-input", "--no-color", "--progress-bar", "off", "--disable-pip-version-check")


class CannotInstall(Exception):
    """The message says why, and ends with the last lines of the installer if it ran."""


def install(lines: Sequence[str], target: Path, work: Path, loaded: Versions) -> None:
    """lines: of a requirements file. work: a folder for temporary files. Raises CannotInstall."""
    file = _written(work / "requirements.txt", lines)
    if uv := shutil.which("uv"):
        _install_with_uv(uv, file, target, work, loaded)
    elif find_spec("pip") is not None:
        _install_with_pip(lines, file, target, work, loaded)
    else:
        raise CannotInstall("this node has neither uv nor pip: install one beside its executor")


def _install_with_uv(uv: str, file: Path, target: Path, work: Path, loaded: Versions) -> None:
    """A target is an empty environment for uv. Loaded packages are excluded by a condition that never holds."""
    excluded = _written(work / "loaded.txt", [f"{name} ; sys_platform == 'never'" for name in loaded])
    options = ("--python", sys.executable, "--link-mode", "copy", "--no-progress", "--color", "never")
    _run([uv, "pip", "install", "--target", str(target), "-r", str(file), "--override", str(excluded), *options], work)


def _install_with_pip(lines: Sequence[str], file: Path, target: Path, work: Path, loaded: Versions) -> None:
    """With a target, pip installs again what is installed, torch too: so it only resolves at first."""
    pip = [sys.executable, "-P", "-m", "pip", "install", *_QUIET]
    constraints = _written(work / "loaded.txt", [f"{name}=={version}" for name, version in loaded.items()])
    report = work / "report.json"
    _run([*pip, "--dry-run", "--report", str(report), "-r", str(file), "-c", str(constraints)], work)
    missing = _pinned(json.loads(report.read_text())["install"])
    if missing:
        options = [line for line in lines if line.startswith("-")]
        exact = _written(work / "exact.txt", [*options, *missing])
        _run([*pip, "--no-deps", "--target", str(target), "-r", str(exact)], work)


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


def _written(file: Path, lines: Sequence[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def _run(command: list[str], work: Path) -> None:
    log = work / "installer.log"
    with log.open("wb") as output:
        ended = subprocess.run(
            command,
            cwd=work,
            env=os.environ | {"TMPDIR": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if ended.returncode:
        said = [line[:_MAX_LINE] for line in log.read_text(errors="replace").splitlines() if line.strip()]
        name = "uv" if command[1] == "pip" else "pip"
        raise CannotInstall("\n".join([f"{name} ended with exit code {ended.returncode}:", *said[-_LAST_LINES:]]))
