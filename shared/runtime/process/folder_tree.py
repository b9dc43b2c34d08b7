"""Deletes and walks folders that users' code can write: of any depth, with any number of files and any names in them.

All happens relative to open folders, so no link leads out of the tree and no path becomes too long. A few files are
open at once, however large the tree is.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RAISED = ".raised-"  # the start of the names of folders that were moved to the top, to be deleted there


def delete_folder(folder: Path, *, goes_on: Callable[[], bool] = lambda: True) -> bool:
    """Delete the folder with all that is in it; a link of this name alone. Returns whether it is gone. Never raises.

    goes_on: asked before each entry. Each folder below moves to the top before its content is deleted, so the depth of
    what is left is two: an interrupted deletion goes on in the next call.
    """
    try:
        with _open(folder) as top:
            counter = _Counter(goes_on)
            while _delete_entries(top, top, counter) and counter.goes_on():
                pass
        folder.rmdir()
    except OSError:
        with suppress(OSError):  # a link, or a file
            folder.unlink()
    return not os.path.lexists(folder)


class _Counter:
    """Counts raised folders of one call; what a call before has left keeps its names."""

    def __init__(self, goes_on: Callable[[], bool]) -> None:
        self.goes_on = goes_on
        self._number = 0

    def raise_folder(self, name: str, below: int, top: int) -> None:
        """Move the folder to the top, under a name that none has there. Raises OSError."""
        while True:
            self._number += 1
            raised = f"{_RAISED}{self._number}"
            try:
                os.stat(raised, dir_fd=top, follow_symlinks=False)
            except FileNotFoundError:
                break
        try:
            os.rename(name, raised, src_dir_fd=below, dst_dir_fd=top)
        except PermissionError:  # the owner may not write it
            _permit(name, below)
            os.rename(name, raised, src_dir_fd=below, dst_dir_fd=top)


def _delete_entries(folder: int, top: int, counter: _Counter) -> bool:
    """Remove the entries of one open folder. Returns whether anything has changed."""
    has_changed = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if not counter.goes_on():
                break
            with suppress(OSError):  # it is gone, or cannot be deleted: the others can
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                elif folder == top:
                    has_changed |= _delete_below(entry.name, top, counter)
                    continue
                else:
                    counter.raise_folder(entry.name, folder, top)
                has_changed = True
    return has_changed


def _delete_below(name: str, top: int, counter: _Counter) -> bool:
    """A folder in the top one, unless it keeps entries that cannot be deleted. Raises OSError."""
    with _open(name, top) as folder:
        has_changed = _delete_entries(folder, top, counter)
    with suppress(OSError):  # not empty
        os.rmdir(name, dir_fd=top)
        return True
    return has_changed


class FolderEntry(NamedTuple):
    """folder: the open one that it is in, until the next entry. name: in it; "" for the top folder itself."""

    folder: int
    name: str
    status: os.stat_result


def walk(folder: Path) -> Iterator[FolderEntry]:
    """The folder, and each entry below it, however deep; what vanishes meanwhile is left out.

    It remembers the names of the folders that it has still to enter, keeps two folders open, and goes up by "..". A
    tree that is moved meanwhile ends early. Raises OSError if the folder cannot be opened, PermissionError also for one
    below it.
    """
    current = os.open(folder, _FOLDER)
    try:
        yield FolderEntry(current, "", os.fstat(current))
        above: list[tuple[int, int]] = []  # device and inode of each folder from the top to the one above this one
        waiting: list[list[str]] = [[]]  # the folders to enter, for each of these and for this one
        yield from _entries(current, waiting[-1])
        while waiting:
            if waiting[-1]:
                below = _opened(waiting[-1].pop(), current)
                if below is not None:
                    above.append(_identity(current))
                    os.close(current)
                    current = below
                    waiting.append([])
                    yield from _entries(current, waiting[-1])
                continue
            waiting.pop()
            if above:
                parent = os.open("..", _FOLDER, dir_fd=current)
                os.close(current)
                current = parent
                if _identity(current) != above.pop():
                    return
    finally:
        os.close(current)


def bytes_and_entries_in(folder: Path, *, up_to_entries: int) -> tuple[int, int]:
    """What its files take on the disk, and how many entries it has, counted up to that many. Raises OSError."""
    num_bytes = num_entries = 0
    for entry in walk(folder):
        num_bytes += entry.status.st_blocks * 512
        num_entries += 1
        if num_entries >= up_to_entries:
            break
    return num_bytes, num_entries


def _entries(folder: int, folders: list[str]) -> Iterator[FolderEntry]:
    """The entries of one open folder. folders: receives the names of folders among them."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # it is gone
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.name)
            yield FolderEntry(folder, entry.name, status)


def _opened(name: str, above: int) -> int | None:
    """Open a folder in the one above; None if it is gone, or no folder any more. Raises PermissionError."""
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        raise
    except OSError:
        return None


@contextmanager
def _open(folder: str | Path, above: int | None = None) -> Iterator[int]:
    """The descriptor of a folder, which its owner may read and change from now on. Raises OSError."""
    try:
        opened = os.open(folder, _FOLDER, dir_fd=above)
    except PermissionError:
        _permit(folder, above)
        opened = os.open(folder, _FOLDER, dir_fd=above)
    try:
        with suppress(OSError):  # of another owner
            os.fchmod(opened, 0o700)
        yield opened
    finally:
        os.close(opened)


def _permit(folder: str | Path, above: int | None) -> None:
    """A folder that its owner cannot even read. Raises OSError."""
    found = os.open(folder, getattr(os, "O_PATH", 0) | _FOLDER, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
    finally:
        os.close(found)


def _identity(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


# --- job folders ---------------------------------------------------------------------------------------
# Whose folders `checkpoints/<job_id>` and `logs/<job_id>` of a data folder are (docs/adr/0102).
#
# A ledger may forget a job, or be restored from an older copy: then another job has the id, maybe of another tenant.
# The record of the owner is in `owners/<job_id>`, where no isolated job reaches it.

OWNERS = "owners"


def are_folders_of(data_dir: Path, job_id: str, identity: str) -> bool:
    """Whether no other job owns them. identity: `Job.identity`."""
    return owner_of(data_dir, job_id) in ("", identity)


def owner_of(data_dir: Path, job_id: str) -> str:
    """The identity of the job that has taken them; "" if none has."""
    try:
        return (data_dir / OWNERS / job_id).read_text(errors="replace")
    except FileNotFoundError:
        return ""


def jobs_with_files(data_dir: Path) -> dict[str, str]:
    """The identities of the jobs whose checkpoints are here, by job id; none where they cannot be read."""
    with contextlib.suppress(OSError):
        return {
            record.name: record.read_text(errors="replace")
            for record in (data_dir / OWNERS).iterdir()
            if (data_dir / "checkpoints" / record.name).is_dir()
        }
    return {}
