"""The files of a job that are stored for its user: found and opened without following links out of its folder.

A worker may replace each folder and file below its own by a link, at any time. So each name is opened relative to the
open folder above it, and only regular files count (docs/adr/0058).
"""

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from elasticflow.shared.messages.events import UnstoredFile
from elasticflow.shared.messages.limits import FILE_PATH_PATTERN, MAX_PATH_LENGTH
from elasticflow.shared.messages.worker_protocol.job_files import (
    ARTIFACT_FOLDER,
    INPUTS_FILE,
    MODEL_FOLDER,
    WORKING_FOLDER,
    iteration_of_model,
)

MAX_DEPTH = 32  # of folders
MAX_ENTRIES = 10_000  # that are looked at
_MAX_INPUTS_BYTES = 8 << 20  # a decoded one may take 30 times as much memory
_COMPILED = "__pycache__"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would block


class Unsuitable(OSError):
    """A name of the job's folder that is not what it must be, with the reason."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """path: below the job's folder."""

    path: str
    iteration: int


def newest_model(job_folder: Path) -> FoundModel | None:
    """None if no worker has written one."""
    try:
        folder = _open_folder(job_folder, MODEL_FOLDER)
    except OSError:
        return None
    with _closing(folder) as fd, os.scandir(fd) as entries:
        known = ((iteration, entry.name) for entry in entries if (iteration := iteration_of_model(entry.name)))
        newest = max(known, default=None)
    if newest is None:
        return None
    iteration, name = newest
    return FoundModel(f"{MODEL_FOLDER}/{name}", iteration)


def artifact_paths(job_folder: Path) -> tuple[list[str], list[UnstoredFile]]:
    """The files of the job's artifact folder, sorted, below it; and what is there but cannot be stored."""
    found, unsuitable = _files_below(job_folder, ARTIFACT_FOLDER, {})
    return sorted(file.path for file in found), unsuitable


def output_paths(job_folder: Path) -> tuple[list[str], list[UnstoredFile]]:
    """What the job has written or changed in its working folder, the newest first, as `artifact_paths`."""
    found, unsuitable = _files_below(job_folder, WORKING_FOLDER, _inputs(job_folder))
    return [file.path for file in sorted(found, key=lambda file: (-file.changed_at_ns, file.path))], unsuitable


class _File(NamedTuple):
    """problem: why it cannot be stored; "" if it can."""

    path: str
    problem: str
    num_bytes: int
    changed_at_ns: int


def _files_below(job_folder: Path, name: str, inputs: Mapping[str, Any]) -> tuple[list[_File], list[UnstoredFile]]:
    """Without inputs that are unchanged."""
    files: list[_File] = []
    unsuitable: list[UnstoredFile] = []
    try:
        folder = _open_folder(job_folder, name)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [UnstoredFile(path=printable(job_folder / name), reason=_reason(error))]
    with _closing(folder) as fd:
        for file in _walk(fd, "", MAX_DEPTH, MAX_ENTRIES + len(inputs)):
            if inputs.get(file.path) == [file.num_bytes, file.changed_at_ns]:
                continue
            if file.problem:
                unsuitable.append(UnstoredFile(path=printable(job_folder / name / file.path), reason=file.problem))
            else:
                files.append(file)
            if len(files) + len(unsuitable) >= MAX_ENTRIES:
                everything = printable(job_folder / name)
                unsuitable.append(UnstoredFile(path=everything, reason=f"it has {MAX_ENTRIES:,} files or more"))
                break
    return files, unsuitable


def _inputs(job_folder: Path) -> Mapping[str, Any]:
    """Size and time of change of each file that was copied into the working folder. The job may write anything here."""
    try:
        with open(open_below(job_folder, INPUTS_FILE), "rb") as file:
            known: Any = json.loads(file.read(_MAX_INPUTS_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    inputs: Any = known.get("files") if isinstance(known, dict) else None
    return inputs if isinstance(inputs, dict) else {}


def open_below(folder: Path, path: str) -> int:
    """A descriptor of the regular file. Raises OSError."""
    *parents, name = path.split("/")
    with _closing(_open_folder(folder, *parents)) as fd:
        try:
            file = os.open(name, _FILE, dir_fd=fd)
        except OSError as error:
            raise Unsuitable(_reason(error)) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Unsuitable("it is no regular file")
    return file


def printable(path: object) -> str:
    """The path as one line of text, whatever its name has."""
    return "".join(char if char.isprintable() else "?" for char in str(path))[:1_000]


def _walk(folder: int, prefix: str, depth: int, max_entries: int) -> Iterator[_File]:
    """Each file below the open folder, except compiled Python."""
    with os.scandir(folder) as entries:
        found = sorted(islice(entries, max_entries), key=lambda entry: entry.name)
    for entry in found:
        path = f"{prefix}{entry.name}"
        if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
            yield _file(path, entry)
        elif entry.name == _COMPILED:
            continue
        elif depth == 0:
            yield _File(path, f"it is deeper than {MAX_DEPTH} folders", 0, 0)
        else:
            try:
                below = os.open(entry.name, _FOLDER, dir_fd=folder)
            except OSError as error:
                yield _File(path, _reason(error), 0, 0)
                continue
            with _closing(below) as fd:
                yield from _walk(fd, f"{path}/", depth - 1, max_entries)


def _file(path: str, entry: "os.DirEntry[str]") -> _File:
    problem = _problem(path, entry)
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError as error:  # it is gone
        return _File(path, problem or _reason(error), 0, 0)
    return _File(path, problem, status.st_size, status.st_mtime_ns)


def _problem(path: str, entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return "it is a link, and links are not followed"
    if not entry.is_file(follow_symlinks=False):
        return "it is no regular file"
    if len(path) > MAX_PATH_LENGTH or not re.fullmatch(FILE_PATH_PATTERN, path):
        return f"its name has control characters or backslashes, or more than {MAX_PATH_LENGTH} characters"
    if any("\ud800" <= char <= "\udfff" for char in path):
        return "its name is not UTF-8"
    return ""


def _open_folder(folder: Path, *below: str) -> int:
    """Raises OSError, also for a link."""
    fd = os.open(folder, _FOLDER)
    for name in below:
        with _closing(fd) as above:
            fd = os.open(name, _FOLDER, dir_fd=above)
    return fd


class _closing:
    """Closes a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
