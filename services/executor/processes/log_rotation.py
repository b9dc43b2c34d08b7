"""Keeps the log file of a process bounded while tasks of any number write to it."""

import asyncio
import contextlib
import os
from pathlib import Path

from elasticflow.shared.runtime.process.regular_file import open_regular_file

MAX_LOG_BYTES = 16 * 1024 * 1024
_POLL_S = 0.5


async def keep_bounded(log_file: Path) -> None:
    """Until cancelled: when the file exceeds MAX_LOG_BYTES, keep its end in `<log_file>.1` and empty it.

    So the two files hold the newest output. They may exceed the limit by the output of _POLL_S, and the lines that are
    written during the copy are lost. All processes must append to the file, as `write_output_to` does.
    """
    while True:
        await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(rotate, log_file)


def rotate(log_file: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Once, if the file is larger. A full disk loses the copy, not the bound.

    The tasks can write the folder: no link in it leads to another file (SECURITY.md).
    """
    with contextlib.suppress(OSError), open_regular_file(log_file, os.O_RDWR) as log:
        num_bytes = os.fstat(log).st_size
        if num_bytes <= max_bytes:
            return
        with contextlib.suppress(OSError):
            _replace(log_file.with_name(f"{log_file.name}.1"), os.pread(log, max_bytes, num_bytes - max_bytes))
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
