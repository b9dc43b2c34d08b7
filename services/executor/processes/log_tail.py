"""The last lines of a worker's log file, for the event that reports its failure."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.limits import MAX_LAST_LINES
from elasticflow.shared.runtime.process.regular_file import open_regular_file

MAX_BYTES = 4_000
_LONGEST_SECRET_BYTES = 64 << 10  # as it is quoted; one that began before the last MAX_BYTES is read whole
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[@-_])")  # colors, and movements of the cursor


def last_lines(log_file: Path, secrets: Iterable[str] = ()) -> str:
    """At most MAX_LAST_LINES lines of printable text, without these values of secrets; "" without a file.

    A worker can put a link or a pipe in place of its log file: neither is read.
    """
    try:
        with open_regular_file(log_file) as file:
            most = MAX_BYTES + _LONGEST_SECRET_BYTES
            read = os.pread(file, most, max(os.fstat(file).st_size - most, 0))
    except OSError:
        return ""
    known = without_secrets(read.decode(errors="replace"), secrets).encode()
    lines = known[-MAX_BYTES:].decode(errors="replace").split("\n")
    if len(known) > MAX_BYTES and len(lines) > 2:
        del lines[0]  # its beginning is missing
    shown = [_printable(line) for line in lines]
    return "\n".join([line for line in shown if line][-MAX_LAST_LINES:])


def _printable(line: str) -> str:
    """What a terminal would show at last: a progress bar overwrites itself."""
    last = _ESCAPES.sub("", line).rstrip().rpartition("\r")[2]
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in last).rstrip()
