"""The last lines of a worker's log file, for the event that reports its failure."""

import os
import re
from pathlib import Path

from elasticflow.shared.messages.limits import MAX_LAST_LINES
from elasticflow.shared.runtime.process.regular_file import open_regular_file

MAX_BYTES = 4_000
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[@-_])")  # colors, and movements of the cursor


def last_lines(log_file: Path) -> str:
    """At most MAX_LAST_LINES lines of printable text; "" without a file.

    A worker can put a link or a pipe in place of its log file: neither is read.
    """
    try:
        with open_regular_file(log_file) as file:
            start = max(os.fstat(file).st_size - MAX_BYTES, 0)
            data = os.pread(file, MAX_BYTES, start)
    except OSError:
        return ""
    lines = data.decode(errors="replace").split("\n")
    if start and len(lines) > 2:
        del lines[0]  # its beginning is missing
    shown = [_printable(line) for line in lines]
    return "\n".join([line for line in shown if line][-MAX_LAST_LINES:])


def _printable(line: str) -> str:
    """What a terminal would show at last: a progress bar overwrites itself."""
    last = _ESCAPES.sub("", line).rstrip().rpartition("\r")[2]
    return "".join(char if char.isprintable() or char == "\t" else "?" for char in last).rstrip()
