"""Keeps the log file of a process bounded while tasks of any number write to it."""

import asyncio
import contextlib
import os
from pathlib import Path

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
    """Once, if the file is larger. A full disk loses the copy, not the bound."""
    try:
        num_bytes = log_file.stat().st_size
    except OSError:  # there is none so far
        return
    if num_bytes <= max_bytes:
        return
    with contextlib.suppress(OSError), log_file.open("rb") as source:
        source.seek(num_bytes - max_bytes)
        log_file.with_name(f"{log_file.name}.1").write_bytes(source.read(max_bytes))
    with contextlib.suppress(OSError):
        os.truncate(log_file, 0)
