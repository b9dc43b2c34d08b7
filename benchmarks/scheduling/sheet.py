"""One table, on a terminal and in Markdown."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

WIDEST = 190  # columns of the widest table: no cell is folded


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One table. rows: cells in the order of the columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def rich(self) -> Table:
        """The table for a terminal."""
        table = Table(title=self.title)
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.columns), _line(("---",) * len(self.columns))]
        return "\n".join([*lines, *map(_line, self.rows), ""])


def show(sheets: Iterable[Sheet], result: dict[str, Any], *, as_json: bool, out: Path | None = None) -> None:
    """Print the sheets, or the JSON object alone. out: a file that gets the object too."""
    text = json.dumps(result, indent=2)
    if out is not None:
        out.write_text(text + "\n")
    if as_json:
        print(text)
    else:
        print_sheets(sheets)


def print_sheets(sheets: Iterable[Sheet]) -> None:
    console = Console()
    console.width = max(console.width, WIDEST)
    for sheet in sheets:
        console.print(sheet.rich())


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
