"""Tables of views: their columns and colours, for a terminal and for a notebook."""

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from elasticflow.history.formatting import shortened, types_in_words, value_in_words
from elasticflow.history.pool_views import JobView
from elasticflow.shared.messages.job_spec import Scalar
from elasticflow.shared.runtime.process.terminal import console, safe_for_terminal
from elasticflow.shared.state.promise import Promise
from elasticflow.times import clock_time, duration_in_words

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


# --- job table ----------------------------------------------------------------------------------------
# The table of jobs, as `eflow jobs`, `eflow watch` and a notebook show it.

# --- The jobs of one sweep, the best first: which configuration won ------------------------------------

_LOWER_IS_BETTER = ("loss", "error", "perplexity", "mse", "mae", "rmse", "cost", "seconds", "bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The metric by which jobs are sorted, and whether its lowest value is the best."""

    metric: str
    lowest_first: bool

    @property
    def in_words(self) -> str:
        return f"{self.metric}, the {'lowest' if self.lowest_first else 'highest'} first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSweep:
    """views: sorted; those without the metric are last. metrics: all names, that of the ranking first."""

    views: tuple[JobView, ...]
    metrics: tuple[str, ...]
    ranking: Ranking | None  # None: no job has reported a metric


def ranked_sweep(views: Iterable[JobView], sweep: str, metric: str = "") -> RankedSweep:
    """The jobs of this sweep. metric: instead of the one that `ranking_of` takes."""
    of_sweep = [view for view in views if view.sweep == sweep]
    ranking = ranking_of(of_sweep, metric)
    if ranking is None:
        return RankedSweep(views=tuple(of_sweep), metrics=(), ranking=None)
    sign = 1.0 if ranking.lowest_first else -1.0

    def place(view: JobView) -> tuple[bool, float]:
        value = view.metrics.get(ranking.metric)
        return value is None, 0.0 if value is None else sign * value

    names = (ranking.metric, *sorted({name for view in of_sweep for name in view.metrics}))
    return RankedSweep(views=tuple(sorted(of_sweep, key=place)), metrics=tuple(dict.fromkeys(names)), ranking=ranking)


def ranking_of(views: Iterable[JobView], metric: str = "") -> Ranking | None:
    """A ranking by the metric that ends the jobs; else by the metric that most of them report, the first by name.

    A metric of a termination condition says which end is better. For others the name decides: of a loss or an error
    the lowest value is the best.
    """
    views = tuple(views)
    goals = {condition.metric: condition.comparison == "<=" for view in views for condition in view.goals}
    reported = Counter(name for view in views for name in view.metrics)
    if not metric:
        known = [name for name in goals if name in reported] or sorted(
            reported, key=lambda name: (-reported[name], name)
        )
        metric = known[0] if known else ""
    if metric not in reported:
        return None
    by_name = any(word in metric.lower() for word in _LOWER_IS_BETTER)
    return Ranking(metric=metric, lowest_first=goals.get(metric, by_name))


# --- job table -----------------------------------------------------------------------------------------


def jobs_table(views: tuple[JobView, ...], now_s: float, *, all_columns: bool = False) -> Table:
    """The table of jobs, with columns of GPU types and of the values of a sweep, where any job has some, and of the
    tenants of several."""
    has_value = {
        _TENANT: len({view.tenant for view in views}) > 1,
        _TYPE_OF_JOB: any(view.gpu_type for view in views),
        _SWEPT: any(view.swept for view in views),
    }
    shown = (column for column in _COLUMNS if has_value.get(column, True))
    return table_of(shown, views, now_s, all_columns=all_columns)


def sweep_table(ranked: RankedSweep, now_s: float) -> Table:
    """The jobs of one sweep, the best first: a column for each swept hyperparameter and each metric."""
    names = dict.fromkeys(name for view in ranked.views for name in view.swept)
    columns = (
        *(_value_column(name) for name in names),
        *(_metric_column(name) for name in ranked.metrics),
        *(column for column in _COLUMNS if column.name in ("STATE", "PROMISE", "ITERATION", "JOB")),
    )
    return table_of(sorted(columns, key=lambda column: column.name == "JOB"), ranked.views, now_s)


def swept_in_words(swept: Mapping[str, Scalar]) -> str:
    """The values in words, such as "learning_rate 0.1, global_batch_size 32"."""
    return ", ".join(f"{name} {value_in_words(value)}" for name, value in swept.items())


def _value_column(name: str) -> Column[JobView]:
    return Column(
        name=name.upper(), cell=lambda view, _: value_in_words(view.swept[name]) if name in view.swept else "-"
    )


def _metric_column(name: str) -> Column[JobView]:
    return Column(
        name=name.upper(),
        cell=lambda view, _: f"{view.metrics[name]:.4g}" if name in view.metrics else "-",
        right=True,
        rank=1,
    )


def _time(at_s: float | None, now_s: float) -> str:
    return "-" if at_s is None else clock_time(at_s, now_s=now_s)


def _gpus(view: JobView) -> str:
    """The GPUs of the job, such as "4", or "4 of 2..8" for a job with a range of GPUs."""
    return f"{view.num_gpus or '-'}" + (f" of {view.gpu_range}" if view.gpu_range != ".." else "")


def margin_word(view: JobView) -> Text:
    """Time between the (expected) finish and the deadline: red if late, yellow if at risk."""
    if view.margin_s is None:
        return Text("-")
    style = "red" if view.margin_s < 0 else "yellow" if view.promise == Promise.AT_RISK else "green"
    return Text(duration_in_words(view.margin_s), style=style)


_TENANT: Column[JobView] = Column(name="TENANT", cell=lambda view, _: view.tenant, rank=5)
_TYPE_OF_JOB: Column[JobView] = Column(
    name="TYPE",
    cell=lambda view, _: types_in_words(view.gpu_type, view.num_gpus, view.num_added_gpus_by_type) or "-",
    rank=5,
)
_SWEPT: Column[JobView] = Column(name="SWEPT", cell=lambda view, _: swept_in_words(view.swept) or "-", rank=5, least=12)
_COLUMNS: tuple[Column[JobView], ...] = (
    Column(name="JOB", cell=lambda view, _: view.job_id, least=16),
    _TENANT,
    _SWEPT,
    Column(name="STATE", cell=lambda view, _: Text(view.activity_in_words, style=STYLES.get(view.activity, ""))),
    Column(
        name="PROMISE", cell=lambda view, _: state_word("-" if view.promise == Promise.NONE else view.promise), rank=1
    ),
    Column(name="CLASS", cell=lambda view, _: view.job_class.replace("_", "-"), rank=10),
    Column(name="GPUS", cell=lambda view, _: _gpus(view), right=True, rank=3),
    _TYPE_OF_JOB,
    Column(name="PROGRESS", cell=lambda view, _: bar(view.progress), rank=9),
    Column(
        name="ITERATION",
        cell=lambda view, _: f"{view.iteration}/{view.max_iterations}" if view.max_iterations else "-",
        right=True,
        rank=4,
    ),
    Column(
        name="RATE/S",
        cell=lambda view, _: f"{view.iterations_per_s:.1f}" if view.iterations_per_s else "-",
        right=True,
        rank=7,
    ),
    Column(name="FINISH", cell=lambda view, now_s: _time(view.expected_finish_s, now_s), right=True, rank=8),
    Column(name="DEADLINE", cell=lambda view, now_s: _time(view.deadline_s, now_s), right=True, rank=6),
    Column(name="MARGIN", cell=lambda view, _: margin_word(view), right=True, rank=2),
)
