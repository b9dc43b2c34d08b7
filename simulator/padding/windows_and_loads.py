"""Idle windows: the times in which a GPU has no job. A CSV file has a row for each, `gpu,start_s,end_s[,gpu_type]`."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from elasticflow.shared.messages.limits import MAX_TIME_S
from elasticflow.simulator.workload.csv_table import BadInput, BadRow, Row, bad_input, columns_of, read_lines, rows_of

REQUIRED = ("gpu", "start_s", "end_s")
COLUMNS = (*REQUIRED, "gpu_type")
ADVICE = f"a file of windows has the columns {', '.join(REQUIRED)}, and perhaps gpu_type"


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """The time from when a GPU is idle until a job is placed on it. gpu_type: "" if unknown."""

    gpu: str
    start_s: float
    end_s: float
    gpu_type: str = ""

    def __post_init__(self) -> None:
        assert self.start_s < self.end_s, f"{self} must end after its start"

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def read_windows(file: Path) -> tuple[IdleWindow, ...]:
    """The windows of a file, in order of start and GPU. BadInput names every bad row."""
    (_, header), *lines = read_lines(file)
    columns = columns_of(file, header, {name: name for name in COLUMNS})
    require_columns(file, columns, REQUIRED, ADVICE)
    found: list[tuple[IdleWindow, int]] = []
    bad: list[BadRow] = []
    for row in rows_of(file, columns, lines):
        try:
            if isinstance(row, BadInput):
                raise row
            found.append((_window(row), row.line))
        except BadInput as error:
            bad.extend(error.problems)
    bad = bad or _overlaps(file, found)
    if bad:
        raise BadInput(tuple(bad), "correct these rows")
    if not found:
        raise bad_input(file, "has no windows: give one row below the header for each time in which a GPU is idle")
    return tuple(sorted((window for window, _ in found), key=lambda window: (window.start_s, window.gpu)))


def write_windows(file: Path, windows: Iterable[IdleWindow]) -> None:
    """Write a file that `read_windows` reads back to the same windows."""
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((one.gpu, repr(one.start_s), repr(one.end_s), one.gpu_type) for one in windows)


def require_columns(file: Path, columns: Sequence[str], required: Sequence[str], advice: str) -> None:
    """BadInput if a column is missing."""
    if missing := [name for name in required if name not in columns]:
        raise bad_input(file, f"no column {', '.join(missing)}", line=1, advice=advice)


def _window(row: Row) -> IdleWindow:
    gpu, start_s, end_s = row.text("gpu"), row.number("start_s", 0, MAX_TIME_S), row.number("end_s", 0, MAX_TIME_S)
    if end_s <= start_s:
        raise row.bad_input("end_s", f"must come after start_s {start_s:.15g}")
    return IdleWindow(gpu, start_s, end_s, row.cells.get("gpu_type", ""))


def _overlaps(file: Path, found: list[tuple[IdleWindow, int]]) -> list[BadRow]:
    ordered = sorted(found, key=lambda pair: (pair[0].gpu, pair[0].start_s, pair[1]))
    return [
        BadRow(
            file=str(file),
            line=line,
            column="start_s",
            value=f"{later.start_s:.15g}",
            reason=f"GPU {later.gpu} is idle until {earlier.end_s:.15g} s already (line {first}); windows of one GPU "
            "must not overlap",
        )
        for (earlier, first), (later, line) in pairwise(ordered)
        if earlier.gpu == later.gpu and later.start_s < earlier.end_s
    ]
