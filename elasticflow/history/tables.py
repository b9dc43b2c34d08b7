"""Tables of views: their columns and colours, for a terminal and for a notebook."""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from elasticflow.shared.runtime.process.terminal import console, safe_for_terminal

View = TypeVar("View")

STYLES = {
    "undecided": "cyan",
    "profiling": "cyan",
    "waiting": "yellow",
    "starting": "cyan",
    "running": "green",
    "recovering": "yellow",
    "finished": "bright_black",
    "measured": "bright_black",
    "admitted": "green",
    "open": "cyan",
    "sealed": "green",
    "rejected": "red",
    "failed": "red",
    "cancelled": "bright_black",
}
_WIDE = 100  # columns of the terminal
_IN_NOTEBOOKS = 200  # a cell of a notebook scrolls
_HTML = (
    "<pre style=\"white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',"
    "consolas,'Courier New',monospace\">{code}</pre>"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[View]):
    """A column of a table of views. cell: of a view, at now_s. in_narrow: a narrow terminal shows it too."""

    name: str
    cell: Callable[[View, float], Text | str]
    right: bool = False
    in_narrow: bool = True


def table(*columns: str, rows: Iterable[tuple[RenderableType | None, ...]], right: tuple[str, ...] = ()) -> Table:
    """Plain columns, as those of `kubectl` and `docker`. right: columns that are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(safe_for_terminal(cell) if isinstance(cell, str) else cell for cell in row))
    return made


def table_of(
    columns: Iterable[Column[View]], views: Iterable[View], now_s: float, *, all_columns: bool = False
) -> Table:
    """A row for each view: all columns on a wide terminal, else the most important ones."""
    wide = all_columns or console().width >= _WIDE
    shown = [column for column in columns if wide or column.in_narrow]
    return table(
        *(column.name for column in shown),
        right=tuple(column.name for column in shown if column.right),
        rows=(tuple(column.cell(view, now_s) for column in shown) for view in views),
    )


def state_word(word: str) -> Text:
    return Text(word, style=STYLES.get(word, ""))


def bar(fraction: float, width: int = 12) -> Text:
    """A progress bar of `width` cells."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return Text("━" * filled, style="green") + Text("─" * (width - filled), style="bright_black")


def as_text(shown: RenderableType) -> str:
    """Lines without colours, for `print` in a program."""
    plain = Console(file=io.StringIO(), width=_IN_NOTEBOOKS, highlight=False, no_color=True)
    with plain.capture() as captured:
        plain.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def as_html(shown: RenderableType) -> str:
    """For a notebook. Markup in names is escaped."""
    recording = Console(file=io.StringIO(), width=_IN_NOTEBOOKS, record=True, highlight=False)
    recording.print(shown)
    return recording.export_html(inline_styles=True, code_format=_HTML)
