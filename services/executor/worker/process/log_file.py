"""The worker's log file, for its own output and that of C libraries and child processes."""

import errno
import io
import os
import stat
import sys
from pathlib import Path
from typing import Any

import structlog

_LONGEST_LINE = 1000  # bytes
_FLIGHT_RECORDS = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")  # torch has renamed it


def write_output_to(log_file: Path) -> None:
    """Append all output to the file from now on. A full disk loses lines, but does not stop the training."""
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        raw = _DroppingWhenFull(log_file, "ab")
    except OSError as error:
        print(f"no log file: {error}", file=sys.stderr, flush=True)
        return
    os.dup2(raw.fileno(), 1)  # C libraries and child processes write there, too
    os.dup2(raw.fileno(), 2)
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace", line_buffering=True)
    sys.stderr = sys.stdout
    structlog.configure(
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
            # the default formatter prints local variables, which may hold secrets
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ]
    )


def keep_flight_records_beside(log_file: Path) -> None:
    """Name the files in which torch keeps NCCL's last calls, if its user turns that on: /tmp ends with the worker."""
    prefix = str(log_file.with_name(f"{log_file.stem}.nccl_trace_"))  # torch adds the rank
    for variable in _FLIGHT_RECORDS:
        os.environ.setdefault(variable, prefix)


def size_of_output() -> int:
    """Bytes in the log file; 0 if there is none."""
    sys.stdout.flush()
    status = os.fstat(2)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def last_line_since(size: int) -> str:
    """The last line of any process since the log file had this size; empty if there is none."""
    length = min(size_of_output() - size, _LONGEST_LINE)
    if length <= 0:
        return ""
    with open("/proc/self/fd/2", "rb") as output:
        output.seek(-length, os.SEEK_END)
        lines = output.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class _DroppingWhenFull(io.FileIO):
    """Drops lines when the disk is full."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return memoryview(data).nbytes
