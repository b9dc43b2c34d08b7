"""The files of a job that are stored for its user: found and opened without following links out of its folder.

A worker may replace each folder and file below its own by a link, at any time. So each name is opened relative to the
open folder above it, and only regular files count (docs/adr/0058).
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from elasticflow.shared.messages.events import UnstoredFile
from elasticflow.shared.messages.limits import FILE_PATH_PATTERN, MAX_PATH_LENGTH
from elasticflow.shared.messages.worker_protocol.job_files import ARTIFACT_FOLDER, MODEL_FOLDER, iteration_of_model

MAX_DEPTH = 32  # of folders
MAX_ENTRIES = 10_000  # that are looked at
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
    paths: list[str] = []
    unsuitable: list[UnstoredFile] = []
    try:
        folder = _open_folder(job_folder, ARTIFACT_FOLDER)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [UnstoredFile(path=printable(job_folder / ARTIFACT_FOLDER), reason=_reason(error))]
    with _closing(folder) as fd:
        for path, problem in _walk(fd, "", MAX_DEPTH):
            if problem:
                unsuitable.append(UnstoredFile(path=printable(job_folder / ARTIFACT_FOLDER / path), reason=problem))
            else:
                paths.append(path)
            if len(paths) + len(unsuitable) >= MAX_ENTRIES:
                everything = printable(job_folder / ARTIFACT_FOLDER)
                unsuitable.append(UnstoredFile(path=everything, reason=f"it has {MAX_ENTRIES:,} files or more"))
                break
    return sorted(paths), unsuitable


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


def _walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    """Each path below the open folder, and why it cannot be stored; "" if it can."""
    with os.scandir(folder) as entries:
        found = sorted(islice(entries, MAX_ENTRIES), key=lambda entry: entry.name)
    for entry in found:
        path = f"{prefix}{entry.name}"
        if entry.is_symlink():
            yield path, "it is a link, and links are not followed"
        elif entry.is_dir(follow_symlinks=False):
            if depth == 0:
                yield path, f"it is deeper than {MAX_DEPTH} folders"
                continue
            try:
                below = os.open(entry.name, _FOLDER, dir_fd=folder)
            except OSError as error:
                yield path, _reason(error)
                continue
            with _closing(below) as fd:
                yield from _walk(fd, f"{path}/", depth - 1)
        elif not entry.is_file(follow_symlinks=False):
            yield path, "it is no regular file"
        elif len(path) > MAX_PATH_LENGTH or not re.fullmatch(FILE_PATH_PATTERN, path):
            yield path, f"its name has control characters or backslashes, or more than {MAX_PATH_LENGTH} characters"
        elif any("\ud800" <= char <= "\udfff" for char in path):
            yield path, "its name is not UTF-8"
        else:
            yield path, ""


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
