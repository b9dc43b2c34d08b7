"""A picture of a figure's claims as inline SVG: the published values beside the measured ones."""

from matplotlib.figure import Figure as Canvas

from benchmarks.papers.claims import Form
from benchmarks.papers.quantities import QUANTITIES
from benchmarks.papers.rows import Row, Section
from benchmarks.papers.svg import svg

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
