"""What a log file has beyond an offset: whole lines, a bounded number of them, and how many were passed over."""

import os
from collections.abc import Iterator
from pathlib import Path

from elasticflow.shared.messages.log_chunk import LogLine
from elasticflow.shared.runtime.process.file_beginning import kept_from
from elasticflow.shared.runtime.process.regular_file import open_regular_file

MAX_BACKLOG_BYTES = 1 << 20  # of a file; what lies further behind is passed over
MAX_LINE_BYTES = 4_000  # longer lines are cut into several
_PART_BYTES = 1 << 20


def new_lines(log_file: Path, offset: int, *, max_bytes: int, max_lines: int, to_the_end: bool) -> list[LogLine]:
    """At most so much, from the offset on. to_the_end: include an unfinished last line.

    Of a file that has grown far more, the newest lines, after one that says how many are left out. Raises OSError.
    """
    lines: list[LogLine] = []
    with open_regular_file(log_file) as file:
        size = os.fstat(file).st_size
        if size < offset:  # its job has cut it
            offset = 0
        kept = kept_from(file, offset)
        if kept > offset or size - offset > MAX_BACKLOG_BYTES:
            num_left_out, up_to = _passed_over(file, kept, max(size - max_bytes, kept + 1))
            number = f"more than {num_left_out:,}" if kept > offset else f"{num_left_out:,}"
            note = f"eflow: {number} lines left out: more than the bus takes; the node has the newest in {log_file}"
            offset = up_to
            lines.append(LogLine(file=log_file.stem, text=note, up_to=offset))
        data = os.pread(file, max_bytes, offset)
        is_last = offset + len(data) >= size and to_the_end
    for part in _parts(data, include_rest=is_last):
        if len(lines) >= max_lines:
            break
        offset += len(part)
        lines.append(LogLine(file=log_file.stem, text=_text(part), up_to=offset))
    return lines


def _passed_over(file: int, offset: int, goal: int) -> tuple[int, int]:
    """The number of lines from the offset to the first line that begins at or behind the goal, and where that is."""
    num_lines = 0
    while data := os.pread(file, _PART_BYTES, offset):
        if offset + len(data) >= goal and (end := data.find(b"\n", max(goal - 1 - offset, 0))) >= 0:
            return num_lines + data.count(b"\n", 0, end + 1), offset + end + 1
        num_lines += data.count(b"\n")
        offset += len(data)
    return num_lines or 1, offset


def _parts(data: bytes, *, include_rest: bool) -> Iterator[bytes]:
    """Lines with their ends; pieces of those that are too long."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start, start + MAX_LINE_BYTES) + 1
        if not end:
            end = start + MAX_LINE_BYTES
            if end > len(data):
                if include_rest:
                    yield data[start:]
                return
        yield data[start:end]
        start = end


def _text(line: bytes) -> str:
    """As a terminal shows it at last: a progress bar overwrites itself."""
    return line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
