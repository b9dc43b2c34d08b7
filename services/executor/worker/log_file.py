"""Where a worker's output goes: its own, that of C libraries, and that of processes which it starts."""

import errno
import io
import os
import sys
from pathlib import Path
from typing import Any

import structlog


def write_output_to(log_file: Path) -> None:
    """From now on, at the end of the file. A disk that takes no more costs lines, not the training."""
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        raw = _DroppingWhenFull(log_file, "ab")
    except OSError as error:
        print(f"no log file: {error}", file=sys.stderr, flush=True)
        return
    os.dup2(raw.fileno(), 1)  # C libraries and child processes write there too
    os.dup2(raw.fileno(), 2)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True
    )
    sys.stderr = sys.stdout
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=False),
        ]
    )


class _DroppingWhenFull(io.FileIO):
    """A log file that loses lines, rather than the training, when the disk is full."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return memoryview(data).nbytes
