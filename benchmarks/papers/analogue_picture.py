"""A picture of an analogue's checks as inline SVG: each number, the one beside it, and the bound."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure as Canvas

from benchmarks.papers.analogues import Analogue, Check, Relation
from benchmarks.papers.svg import svg
from benchmarks.papers.verdicts import Measurement

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
