"""Tables and pictures of the report, as Markdown, HTML and inline SVG: the same bytes for the same numbers."""

import html
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas

from benchmarks.papers.analogues import Analogue, Check, Relation
from benchmarks.papers.claims import QUANTITIES, Form
from benchmarks.papers.rows import Row, Section
from benchmarks.papers.verdicts import Measurement

# --- cells and tables ----------------------------------------------------------------------------------


def number_text(found: Measurement | None) -> str:
    """The number, with the least and the greatest where they differ; "" for none."""
    if found is None:
        return ""
    spread = f" ({found.least:,.3g} to {found.most:,.3g})" if found.most > found.least else ""
    return f"{found.value:,.3g}{spread}"


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Its lines."""
    return [_line(columns), _line(("---",) * len(columns)), *map(_line, rows)]


def html_table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    heads = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n" for cells in rows)
    return f"<table>\n<tr>{heads}</tr>\n{body}</table>"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


# --- pictures ------------------------------------------------------------------------------------------


def svg(name: str, width: float, height: float, draw: Callable[[Canvas], None]) -> str:
    """What `draw` draws. name: of the picture; sizes in inches."""
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(canvas)
        draw(canvas)
        written = io.StringIO()
        canvas.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    return text[text.index("<svg") :]


# --- of a figure ---------------------------------------------------------------------------------------


COLOURS = {"published": "#8c8c8c", "the paper's algorithm, here": "#1f77b4", "ours": "#d62728"}
WIDTH = 0.27


def picture(section: Section) -> str:
    """Empty where nothing was measured."""
    rows = [row for row in section.rows if row.measurement is not None]
    if not rows:
        return ""

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        for position, (series, colour) in enumerate(COLOURS.items()):
            _bars(axes, rows, series, position, colour)
        axes.set_xticks(range(len(rows)), [row.claim.name for row in rows], rotation=20, fontsize=8)
        axes.set_ylabel(_unit(rows[0]), fontsize=8)
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))

    return svg(section.figure.figure_id, 1.6 + 1.1 * len(rows), 2.6, draw)


def _bars(axes: object, rows: list[Row], series: str, position: int, colour: str) -> None:
    """Whiskers are the least and the greatest of several seeds or traces."""
    shown = [(at, row, value) for at, row in enumerate(rows) if (value := _value(row, series)) is not None]
    if not shown:
        return
    at_x = [at + (position - 1) * WIDTH for at, _, _ in shown]
    heights = [value for _, _, value in shown]
    axes.bar(at_x, heights, WIDTH, label=series, color=colour)  # pyright: ignore[reportAttributeAccessIssue]
    for x, (_, row, value) in zip(at_x, shown, strict=True):
        found = {"ours": row.ours, "published": None}.get(series, row.measurement)
        if found is not None and found.most > found.least:
            below, above = max(value - found.least, 0.0), max(found.most - value, 0.0)
            axes.errorbar(x, value, [[below], [above]], color="black", capsize=2, linewidth=0.8)  # pyright: ignore[reportAttributeAccessIssue]


def _value(row: Row, series: str) -> float | None:
    match series:
        case "published":
            return row.claim.value
        case "ours":
            return None if row.ours is None else row.ours.value
        case _:
            return None if row.measurement is None else row.measurement.value


def _unit(row: Row) -> str:
    title = QUANTITIES[row.claim.quantity].title
    return title if row.claim.form is Form.VALUE else f"{row.claim.unit}: {title}"


# --- of an analogue ------------------------------------------------------------------------------------


_BOUNDS = {Relation.AT_LEAST: "at least", Relation.AT_MOST: "at most"}
_HERE, _BESIDE, _LIMIT = "#1f77b4", "#8c8c8c", "#d62728"


def analogue_picture(analogue: Analogue, numbers: Mapping[str, Measurement]) -> str:
    """A chart for each check, because their units differ. Empty where nothing was measured."""
    checks = [check for check in analogue.checks if check.number in numbers]
    if not checks:
        return ""

    def draw(canvas: Canvas) -> None:
        for axes, check in zip(canvas.subplots(1, len(checks), squeeze=False)[0], checks, strict=True):
            _check(axes, check, numbers)

    return svg(analogue.analogue_id, 0.4 + 1.3 * len(checks), 2.4, draw)


def _check(axes: Any, check: Check, numbers: Mapping[str, Measurement]) -> None:
    """Whiskers are the least and the greatest of several parts or runs."""
    bars = [("here", numbers[check.number], _HERE)]
    if check.beside in numbers:
        bars.append(("beside it", numbers[check.beside], _BESIDE))
    for at, (_, found, colour) in enumerate(bars):
        axes.bar(at, found.value, 0.7, color=colour)
        if found.most > found.least:
            axes.errorbar(at, found.value, [[found.value - found.least], [found.most - found.value]], color="black")
    if check.relation in _BOUNDS:
        axes.axhline(check.bound, color=_LIMIT, linestyle="--", linewidth=1)
        axes.set_xlabel(f"--- {_BOUNDS[check.relation]} {check.bound:,.3g}", fontsize=7, color=_LIMIT)
    axes.set_xticks(range(len(bars)), [name for name, _, _ in bars], fontsize=7)
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title(check.name.replace("-", "\n", 1), fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
