"""Output of the command: results on stdout, as tables or one JSON value; everything else on stderr."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Generic, TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from elasticflow.shared.runtime.process.terminal import console

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[View]):
    """A column of a table of views. cell: of a view, at now_s. in_narrow: a narrow terminal shows it too."""

    name: str
    cell: Callable[[View, float], Text | str]
    right: bool = False
    in_narrow: bool = True


def say(shown: RenderableType) -> None:
    """Print a result."""
    console().print(shown)


def say_line(text: str, style: str = "") -> None:
    """Print one line of a result, never wrapped."""
    if style:
        console().print(Text(text, style=style), soft_wrap=True)
    else:  # a log may have a million lines; rich is fifty times slower
        print(text, flush=True)


def note(text: str, end: str = "\n") -> None:
    """Print a message to stderr."""
    print(text, file=sys.stderr, end=end, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON value, on one line."""
    print(json.dumps(plain(value), default=str), flush=True)


def plain(value: Any) -> Any:
    """Dataclasses as maps, at any depth."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def table(*columns: str, rows: Iterable[tuple[RenderableType | None, ...]], right: tuple[str, ...] = ()) -> Table:
    """Plain columns, as those of `kubectl` and `docker`. right: columns that are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def table_of(columns: Iterable[Column[View]], views: Iterable[View], now_s: float) -> Table:
    """A row for each view: all columns on a wide terminal, else the most important ones."""
    wide = console().width >= _WIDE
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
