"""Keeps the log files of processes bounded while processes of any number write to them (docs/adr/0073).

The oldest output of a file becomes a hole. So no line is lost or moved while writers append, and readers go on from
where they were (`log_publisher`, `eflow logs`).
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path

from elasticflow.shared.runtime.process.file_beginning import NoHoles, free_beginning, kept_from
from elasticflow.shared.runtime.process.regular_file import open_regular_file

MAX_LOG_BYTES = 16 * 1024 * 1024  # of a process
MAX_FOLDER_BYTES = 256 * 1024 * 1024  # of all processes that a job or load has had here
_MAX_FILES = 10_000  # that are looked at
_POLL_S = 0.5


@contextlib.asynccontextmanager
async def bounded(log_file: Path) -> AsyncIterator[None]:
    """Keep the newest MAX_LOG_BYTES of the file meanwhile, and at the end.

    It may exceed the limit by the output of _POLL_S. Logs of earlier processes beside it lose their lines, the oldest
    ones first, when the folder has MAX_FOLDER_BYTES.
    """
    keeping = asyncio.create_task(_keep_bounded(log_file), name=f"log {log_file.name}")
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(rotate, log_file)


async def _keep_bounded(log_file: Path) -> None:
    await asyncio.to_thread(shorten_oldest, log_file.parent)
    while True:
        await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(rotate, log_file)


def rotate(log_file: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Once, if the file has more than this. Errors of the disk leave it as it is.

    Users' code can write the folder: no link in it leads to another file (SECURITY.md).
    """
    with contextlib.suppress(OSError), open_regular_file(log_file, os.O_RDWR) as log:
        num_bytes = os.fstat(log).st_size
        if num_bytes - kept_from(log, 0) <= max_bytes:
            return
        try:
            free_beginning(log, num_bytes - max_bytes)
        except NoHoles:
            _empty(log, log_file, max_bytes)


def shorten_oldest(folder: Path, *, max_bytes: int = MAX_FOLDER_BYTES) -> None:
    """Logs of a folder, from the one that was written to least recently, until all have at most so much."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:  # the job may have made millions
            of_logs = (entry for entry in entries if ".log" in entry.name)
            logs = [(entry.stat(follow_symlinks=False), entry.name) for entry in islice(of_logs, _MAX_FILES)]
        excess = sum(status.st_blocks * 512 for status, _ in logs) - max_bytes
        for status, name in sorted(logs, key=lambda log: log[0].st_mtime_ns):
            if excess <= 0:
                return
            rotate(folder / name, max_bytes=0)
            excess -= status.st_blocks * 512


def _empty(log: int, log_file: Path, max_bytes: int) -> None:
    """Without holes: keep the end in `<log_file>.1`. Lines that are written during the copy are lost; a full disk loses
    the copy, not the bound."""
    start = os.fstat(log).st_size - max_bytes
    if max_bytes:
        with contextlib.suppress(OSError):
            _replace(log_file.with_name(f"{log_file.name}.1"), os.pread(log, max_bytes, start))
    os.ftruncate(log, 0)


def _replace(file: Path, data: bytes) -> None:
    """Also a link of this name. Raises OSError, and leaves no part."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        created = open_regular_file(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with created as copy, os.fdopen(copy, "wb", closefd=False) as output:
            output.write(data)
        unfinished.rename(file)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
