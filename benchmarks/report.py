"""What a benchmark of several parts prints: a table with a goal beside each number, and all numbers as JSON."""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

Measured = dict[str, Any]
TABLE_WIDTH = 140


class Row(NamedTuple):
    """beside: what the same run measured for comparison."""

    what: str
    measured: str
    goal: str = ""
    beside: str = ""


RowsOf = Callable[[Any], Iterable[Row]]  # of what a part measured


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def where_and_when(load_average_before: float) -> Measured:
    """The machine, and its load average in the last minute before the first part and after the last one."""
    return {"machine": machine(), "load_average": [load_average_before, os.getloadavg()[0]]}


def report(title: str, result: Measured, rows_of: Mapping[str, RowsOf], *, as_json: bool, out: Path | None) -> None:
    """result: by part, with `where_and_when`. as_json, out: as in `show`."""
    show(table(title, result, rows_of), result, as_json=as_json, out=out, width=TABLE_WIDTH)


def show(drawn: Table, result: Measured, *, as_json: bool, out: Path | None, width: int | None = None) -> None:
    """Print the table and the JSON object. as_json: the object alone. out: a file that gets it too."""
    text = json_text(result, out)
    if not as_json:
        Console(width=width).print(drawn)
    print(text)


def json_text(result: Measured, out: Path | None) -> str:
    """The result as JSON. out: a file that gets it too."""
    text = json.dumps(result, indent=2)
    if out is not None:
        out.write_text(text + "\n")
    return text


def table(title: str, result: Measured, rows_of: Mapping[str, RowsOf]) -> Table:
    drawn = Table(title=f"{title}, {result['machine']}")
    for column in ("what", "measured", "goal", "beside it, in the same run"):
        drawn.add_column(column)
    for name in filter(result.__contains__, rows_of):
        for row in rows_of[name](result[name]):
            drawn.add_row(*row)
    return drawn
