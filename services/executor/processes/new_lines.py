"""What a log file has beyond an offset: whole lines, a bounded number of them, and how many were passed over."""

import os
from collections.abc import Iterator
from pathlib import Path

from elasticflow.shared.messages.log_chunk import LogLine
from elasticflow.shared.runtime.process.file_beginning import kept_from
from elasticflow.shared.runtime.process.regular_file import open_regular_file

MAX_BACKLOG_BYTES = 1 << 20  # of a file; what lies further behind is passed over
MAX_LINE_BYTES = 4_000  # longer lines are cut into several
MAX_COUNTED_BYTES = 16 << 20  # of lines that are passed over; of more, the number is not known
_PART_BYTES = 1 << 20


def new_lines(
    log_file: Path,
    offset: int,
    *,
    max_bytes: int,
    max_lines: int,
    to_the_end: bool,
    max_counted_bytes: int = MAX_COUNTED_BYTES,
) -> list[LogLine]:
    """At most so much, from the offset on. to_the_end: include an unfinished last line.

    Of a file that has grown far more, the newest lines, after one that says how many are left out. What it reads is
    bounded, and holes are not read, however large the file claims to be. Raises OSError.
    """
    lines: list[LogLine] = []
    with open_regular_file(log_file) as file:
        size = os.fstat(file).st_size
        if size < offset:  # its job has cut it
            offset = 0
        kept = kept_from(file, offset)
        if kept > offset or size - offset > MAX_BACKLOG_BYTES:
            up_to = _beginning_of_line(file, max(size - max_bytes, kept + 1), max_bytes=max_bytes + 1)
            num_left_out, is_exact = _num_lines(file, kept, up_to, max_bytes=max_counted_bytes)
            number = f"{num_left_out:,}" if is_exact and kept == offset else f"more than {num_left_out:,}"
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


def _num_lines(file: int, offset: int, up_to: int, *, max_bytes: int) -> tuple[int, bool]:
    """Those between both, without what is in holes or above the bound; and whether that is all."""
    num_lines, left_bytes, is_exact = 0, max_bytes, True
    while is_exact and offset < up_to:
        data = os.pread(file, min(_PART_BYTES, up_to - offset, left_bytes), offset)
        num_lines += data.count(b"\n")
        left_bytes -= len(data)
        offset += len(data)
        is_exact = bool(data) and kept_from(file, offset) == offset
    return max(num_lines, 1), is_exact


def _beginning_of_line(file: int, goal: int, *, max_bytes: int) -> int:
    """The first one at or behind the goal, or the end of the hole there; where the bytes that may be read end, if there
    is none."""
    start = kept_from(file, goal - 1)
    if start >= goal:
        return start
    data = os.pread(file, max_bytes, start)
    end = data.find(b"\n")
    return start + (end + 1 if end >= 0 else len(data))


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
