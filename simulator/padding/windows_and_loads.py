"""Idle windows, the times in which a GPU has no job, and the padding loads that are to use them, read from files.

A CSV file of windows has a row for each, `gpu,start_s,end_s[,gpu_type]`.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from elasticflow.shared.messages.limits import MAX_TIME_S
from elasticflow.shared.messages.syntax_problems import parsed_toml
from elasticflow.shared.scheduling.padding.cost_model import TaskCost, whole_tasks
from elasticflow.simulator.workload.csv_table import BadInput, BadRow, Row, bad_input, columns_of, read_lines, rows_of

WINDOW_REQUIRED = ("gpu", "start_s", "end_s")
WINDOW_COLUMNS = (*WINDOW_REQUIRED, "gpu_type")
WINDOW_ADVICE = f"a file of windows has the columns {', '.join(WINDOW_REQUIRED)}, and perhaps gpu_type"


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
    columns = columns_of(file, header, {name: name for name in WINDOW_COLUMNS})
    require_columns(file, columns, WINDOW_REQUIRED, WINDOW_ADVICE)
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
        writer.writerow(WINDOW_COLUMNS)
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


# --- loads ---------------------------------------------------------------------------------------------
# The padding loads of a simulation, from TOML with a `[[load]]` table for each, or CSV with a row for each.
#
# load_id, tenant, tasks, task_s                                                    (required)
# weight, overhead_s, start_stop_s, opened_at_s, gpu_type, spread                   (optional)

LOAD_REQUIRED = ("load_id", "tenant", "tasks", "task_s")
LOAD_KEYS = (*LOAD_REQUIRED, "weight", "overhead_s", "start_stop_s", "opened_at_s", "gpu_type", "spread")
LOAD_ADVICE = f"a load has {', '.join(LOAD_REQUIRED)}, and perhaps {', '.join(LOAD_KEYS[len(LOAD_REQUIRED) :])}"
MIN_TASK_S, MAX_TASK_S, MAX_TASKS, MAX_WEIGHT, MAX_SPREAD = 1e-4, 1e6, 10_000_000, 1e6, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingLoad:
    """One load of a tenant. weight: the tenant's. gpu_type: "" for any.

    spread: of task seconds, the standard deviation of their logarithm; 0 for tasks of equal length.
    """

    load_id: str
    tenant: str
    num_tasks: int
    cost: TaskCost
    weight: float = 1.0
    opened_at_s: float = 0.0
    gpu_type: str = ""
    spread: float = 0.0

    def usable_s(self, window: IdleWindow) -> float:
        """The seconds of a window that tasks of this load may use."""
        if self.gpu_type not in ("", window.gpu_type):
            return 0.0
        return max(window.end_s - max(window.start_s, self.opened_at_s), 0.0)


def read_loads(file: Path) -> tuple[PaddingLoad, ...]:
    """The loads of a file, in its order. BadInput names every bad load."""
    loads: dict[str, PaddingLoad] = {}
    bad: list[BadRow] = []
    for row in _csv_rows(file) if file.suffix.lower() == ".csv" else _toml_rows(file):
        try:
            if isinstance(row, BadInput):
                raise row
            load = _load(row)
            _check_against(loads, load, row)
            loads[load.load_id] = load
        except BadInput as error:
            bad.extend(error.problems)
    if bad:
        raise BadInput(tuple(bad), "correct these loads")
    if not loads:
        raise bad_input(file, "has no load", advice=LOAD_ADVICE)
    return tuple(loads.values())


def require_long_windows(file: Path, loads: Sequence[PaddingLoad], windows: Sequence[IdleWindow]) -> None:
    """BadInput names each load of which no task fits any window."""
    bad: list[BadRow] = []
    for load in loads:
        longest_s = max((load.usable_s(window) for window in windows), default=0.0)
        if longest_s > 0 and whole_tasks(longest_s, load.cost) > 0:
            continue
        cost, gpu_type = load.cost, f" of GPU type {load.gpu_type}" if load.gpu_type else ""
        reason = (
            f"load {load.load_id} starves: no window{gpu_type} is long enough, the longest is {longest_s:.6g} s; "
            f"one task takes {cost.start_stop_s + cost.with_overhead_s:.6g} s with the start of its runner"
        )
        bad.append(BadRow(file=str(file), reason=reason))
    if bad:
        raise BadInput(tuple(bad), "divide these loads into shorter tasks, or give longer windows of their GPU type")


def _csv_rows(file: Path) -> Iterator[Row | BadInput]:
    (_, header), *lines = read_lines(file)
    columns = columns_of(file, header, {name: name for name in LOAD_KEYS})
    require_columns(file, columns, LOAD_REQUIRED, LOAD_ADVICE)
    return rows_of(file, columns, lines)


def _toml_rows(file: Path) -> Iterator[Row | BadInput]:
    try:
        text = file.read_text(encoding="utf-8-sig")
        content = parsed_toml(text)
    except OSError as error:
        raise bad_input(file, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise bad_input(file, "is not a text in UTF-8", advice="write one [[load]] table for each load") from error
    except ValueError as error:
        raise bad_input(file, f"is not TOML: {error}", advice="write one [[load]] table for each load") from error
    tables = content.pop("load", [])
    if content or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        found = f"unknown key {next(iter(content))!r}" if content else "'load' is not a list of tables"
        raise bad_input(file, found, advice="write one [[load]] table for each load, and nothing else")
    lines = [line for line, typed in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*load\s*]]", typed)]
    for number, table in enumerate(tables):
        line = lines[number] if len(lines) == len(tables) else 0
        yield _table_row(file, line, table)


def _table_row(file: Path, line: int, table: dict[str, Any]) -> Row | BadInput:
    if unknown := [key for key in table if key not in LOAD_KEYS]:
        return bad_input(file, f"unknown key {unknown[0]!r}; {LOAD_ADVICE}", line=line)
    return Row(file=str(file), line=line, cells={key: str(value).strip() for key, value in table.items()})


def _load(row: Row) -> PaddingLoad:
    num_tasks = row.whole("tasks", 0, MAX_TASKS)
    if num_tasks == 0:
        raise row.bad_input("tasks", f"a load without tasks; give 1 to {MAX_TASKS}, or remove the load")
    cost = TaskCost(
        task_s=row.number("task_s", MIN_TASK_S, MAX_TASK_S),
        overhead_s=_optional(row, "overhead_s", 0.0, 0.0, MAX_TASK_S),
        start_stop_s=_optional(row, "start_stop_s", 0.0, 0.0, MAX_TASK_S),
    )
    return PaddingLoad(
        load_id=row.text("load_id"),
        tenant=row.text("tenant"),
        num_tasks=num_tasks,
        cost=cost,
        weight=_optional(row, "weight", 1.0, 1 / MAX_WEIGHT, MAX_WEIGHT),
        opened_at_s=_optional(row, "opened_at_s", 0.0, 0.0, MAX_TIME_S),
        gpu_type=row.cells.get("gpu_type", ""),
        spread=_optional(row, "spread", 0.0, 0.0, MAX_SPREAD),
    )


def _optional(row: Row, column: str, default: float, low: float, high: float) -> float:
    return row.number(column, low, high) if row.has(column) else default


def _check_against(loads: dict[str, PaddingLoad], load: PaddingLoad, row: Row) -> None:
    if load.load_id in loads:
        raise row.bad_input("load_id", "is another load's id already; every load needs its own")
    for other in loads.values():
        if other.tenant == load.tenant and other.weight != load.weight:
            reason = f"load {other.load_id} gives tenant {load.tenant} the weight {other.weight:g}; give one weight"
            raise row.bad_input("weight", reason)
