"""Tables of views: their columns and colours, for a terminal and for a notebook."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from elasticflow.history.formatting import shortened
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
    "promised": "green",
    "at risk": "yellow",
    "kept": "green",
    "broken": "red",
    "measured": "bright_black",
    "admitted": "green",
    "open": "cyan",
    "sealed": "green",
    "rejected": "red",
    "failed": "red",
    "cancelled": "bright_black",
}
_IN_NOTEBOOKS = 200  # a cell of a notebook scrolls
_HTML = (
    "<pre style=\"white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',"
    "consolas,'Courier New',monospace\">{code}</pre>"
)


def fewer_names(text: str, width: int) -> str:
    """The first names of several, and the number of the others: as "digits wine +2"."""
    names = text.split(" ")
    if len(text) <= width or len(names) == 1:
        return shortened(text, width)
    for count in range(len(names) - 1, 0, -1):
        shown = f"{' '.join(names[:count])} +{len(names) - count}"
        if len(shown) <= width:
            return shown
    rest = f" +{len(names) - 1}"
    return f"{shortened(names[0], width - len(rest))}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[View]):
    """A column of a table of views. cell: of a view, at now_s.

    A terminal that is too narrow for all columns gives up those with the highest rank first, and none with rank 0.
    least: to so many characters its cells may be shortened, with `shorten`; 0: never.
    """

    name: str
    cell: Callable[[View, float], Text | str]
    right: bool = False
    rank: int = 0
    least: int = 0
    shorten: Callable[[str, int], str] = shortened


def table(*columns: str, rows: Iterable[tuple[RenderableType | None, ...]], right: tuple[str, ...] = ()) -> Table:
    """Plain columns, as those of `kubectl` and `docker`. right: columns that are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(_safe_cell(cell) if isinstance(cell, Text | str) else cell for cell in row))
    return made


def _safe_cell(cell: Text | str) -> Text | str:
    """The cell without what would command a terminal."""
    if isinstance(cell, str):
        return safe_for_terminal(cell)
    safe = safe_for_terminal(cell.plain)
    return cell if safe == cell.plain else Text(safe, style=cell.style)


def table_of(
    columns: Iterable[Column[View]], views: Iterable[View], now_s: float, *, all_columns: bool = False
) -> Table:
    """A row for each view. On a terminal, the columns that fit; names are shortened before a column is given up."""
    views = tuple(views)
    cells = {column: [_safe_cell(column.cell(view, now_s)) for view in views] for column in columns}
    terminal = console()
    if terminal.is_terminal and not all_columns:
        cells = _fitted(cells, terminal.width)
    return table(
        *(column.name for column in cells),
        right=tuple(column.name for column in cells if column.right),
        rows=zip(*cells.values(), strict=True),
    )


_Cells = Mapping[Column[View], Sequence[Text | str]]
_GAP = 2  # characters between two columns


def _fitted(cells: _Cells[View], width: int) -> _Cells[View]:
    """The cells that fit into so many characters."""
    wide = {column: max(map(cell_len, map(str, (column.name, *rows)))) for column, rows in cells.items()}
    narrow = {column: min(wide[column], column.least or wide[column]) for column in cells}
    kept = dict(cells)
    while _total(narrow[column] for column in kept) > width and any(column.rank for column in kept):
        del kept[max(kept, key=lambda column: column.rank)]
    spare = max(0, width - _total(narrow[column] for column in kept))
    for column in kept:
        given = min(spare, wide[column] - narrow[column])
        spare -= given
        if column.least:
            kept[column] = [_shortened_cell(column, cell, narrow[column] + given) for cell in kept[column]]
    return kept


def _total(widths: Iterable[int]) -> int:
    widths = tuple(widths)
    return sum(widths) + _GAP * (len(widths) - 1)


def _shortened_cell(column: Column[View], cell: Text | str, width: int) -> Text:
    return Text(column.shorten(str(cell), width), style=cell.style if isinstance(cell, Text) else "")


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
    """The HTML for a notebook. Markup in names is escaped."""
    recording = Console(file=io.StringIO(), width=_IN_NOTEBOOKS, record=True, highlight=False)
    recording.print(shown)
    return recording.export_html(inline_styles=True, code_format=_HTML)
