"""The files of a project folder that are sent with a job: all but those that patterns name, as for git."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from elasticflow.shared.messages.limits import MAX_ARCHIVE_BYTES, MAX_ARCHIVE_FILES

# --- The error of code that cannot be sent -------------------------------------------------------------


class PackagingFailed(ValueError):
    """The code cannot be sent; the message says why."""


# --- workdir -------------------------------------------------------------------------------------------

IGNORE_FILE = ".eflowignore"
# A line of the ignore file that begins with "!" includes them again.
DEFAULT_PATTERNS = (
    *(".git/", ".hg/", ".svn/", ".venv/", "venv/", ".tox/", ".nox/", "node_modules/", ".eflow/"),
    *("__pycache__/", "*.py[cod]", "*.egg-info/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/"),
    *(".ipynb_checkpoints/", ".idea/", ".vscode/", ".DS_Store", ".env"),
)
_DEFAULTS = GitIgnoreSpec.from_lines(DEFAULT_PATTERNS)
_NAMED_PATHS = 5  # in an error


class FileOfWorkdir(NamedTuple):
    """name: relative to the folder, with "/"; a folder that is sent empty ends with it. num_bytes: its size."""

    name: str
    num_bytes: int


def files_of_workdir(folder: Path) -> list[str]:
    """The names of all files to send, relative to the folder, in order; and of folders that are sent empty.

    Raises PackagingFailed for a link that leaves the folder, and if the files are more than can be sent.
    """
    found = sorted(_files(folder, _ignored(folder)))
    following = [file.name for file in found[1:]] + [""]
    files = [file for file, after in zip(found, following, strict=True) if not _holds(file.name, after)]
    num_bytes = sum(file.num_bytes for file in files)
    if num_bytes > MAX_ARCHIVE_BYTES or len(files) > MAX_ARCHIVE_FILES:
        raise PackagingFailed(
            f"the workdir {folder} has {len(files):,} files of {num_bytes:,} bytes, and at most {MAX_ARCHIVE_FILES:,} "
            f"of {MAX_ARCHIVE_BYTES:,} can be sent. The largest: {_largest(files)}. Name what the job does not need in "
            f"{folder / IGNORE_FILE}, and pass data by --data NAME=PATH, from storage that the nodes read"
        )
    return [file.name for file in files]


def _holds(folder: str, name: str) -> bool:
    """Whether this is a folder that comes with a file in it."""
    return folder.endswith("/") and name.startswith(folder)


def _ignored(folder: Path) -> GitIgnoreSpec:
    file = folder / IGNORE_FILE
    try:
        own = file.read_text().splitlines() if file.is_file() else []
        return GitIgnoreSpec.from_lines([*DEFAULT_PATTERNS, *own])
    except ValueError as error:  # of a pattern, or no text
        raise PackagingFailed(f"{file} has no valid patterns: {error}; write them as in .gitignore") from None


def _files(folder: Path, ignored: GitIgnoreSpec) -> Iterator[FileOfWorkdir]:
    for parent, names, files in os.walk(folder, onerror=_refuse_unreadable):
        inside = Path(parent).relative_to(folder)
        kept = [name for name in names if not ignored.match_file(f"{(inside / name).as_posix()}/")]
        for name in kept:
            _refuse_link(folder, inside / name, is_folder=True)
        for path in (f"{(inside / name).as_posix()}/" for name in names):
            if not _DEFAULTS.match_file(path) or not ignored.match_file(path):
                yield FileOfWorkdir(path, 0)  # a script that writes into it would not make it
        names[:] = sorted(kept)  # os.walk visits these only
        for name in files:
            path = inside / name
            if not ignored.match_file(path.as_posix()):
                _refuse_link(folder, path, is_folder=False)
                if (folder / path).is_file():  # no socket or pipe
                    yield FileOfWorkdir(path.as_posix(), (folder / path).stat().st_size)


def _refuse_unreadable(error: OSError) -> None:
    raise PackagingFailed(
        f"{error.filename} cannot be read: {error.strerror}; name it in {IGNORE_FILE} if the job does not need it"
    ) from error


def _refuse_link(folder: Path, path: Path, *, is_folder: bool) -> None:
    """A link to a file within the folder is sent as that file."""
    link = folder / path
    if not link.is_symlink():
        return
    target = link.resolve()
    if target.is_relative_to(folder) and target.is_file() and not is_folder:
        return
    leads = "to a folder" if target.is_relative_to(folder) and target.is_dir() else f"out of the workdir {folder}"
    if target.is_relative_to(folder) and not target.exists():
        leads = "nowhere"
    raise PackagingFailed(
        f"{path} is a link {leads}: {os.readlink(link)}. Replace it by a copy, or name it in {folder / IGNORE_FILE}"
    )


def _largest(files: list[FileOfWorkdir]) -> str:
    """The largest files and folders, two levels deep."""
    sizes = Counter[str]()
    for file in files:
        sizes["/".join(file.name.split("/")[:2])] += file.num_bytes
    return ", ".join(f"{path} ({size / 1e6:,.1f} MB)" for path, size in sizes.most_common(_NAMED_PATHS))
