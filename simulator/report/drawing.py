"""Canvas, colours and shapes of the figures."""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.typing import NDArray

from elasticflow.simulator.trace.simulated_run import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]

NUM_INTERVALS = 100
DPI = 100
HOUR_S = 3_600.0


def panels(count: int) -> "tuple[Figure, list[Axes]]":
    """Panels one above the other."""
    figure = Figure(figsize=(9.0, 3.6 if count == 1 else 3.0 * count), layout="constrained")
    FigureCanvasAgg(figure)
    axes_of_all = list(figure.subplots(count, 1, squeeze=False)[:, 0])
    for axes in axes_of_all:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    return figure, axes_of_all


def colours(count: int) -> list[str]:
    """Up to ten colours are easy to distinguish, up to twenty with care."""
    palette = colormaps["tab10" if count <= 10 else "tab20"].colors  # pyright: ignore[reportAttributeAccessIssue]
    return [to_hex(palette[position % len(palette)]) for position in range(count)]


def bars(axes: "Axes", groups: Sequence[str], heights: Mapping[str, Sequence[float]]) -> None:
    """heights: by series, one for each group; 0 to 1."""
    width = 0.8 / len(heights)
    for position, (series, colour) in enumerate(zip(heights, colours(len(heights)), strict=True)):
        at = np.arange(len(groups)) + (position - (len(heights) - 1) / 2) * width
        axes.bar(at, heights[series], width, label=series, color=colour)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1.02)


def lines_over_time(axes: "Axes", edges_s_B: FloatArray, values_by_series: Mapping[str, FloatArray]) -> None:
    """values_by_series: means over the intervals. The first series, ours, is drawn on top."""
    hours_B = (edges_s_B - edges_s_B[0]) / HOUR_S
    shades = colours(len(values_by_series))
    for position, (series, values) in enumerate(values_by_series.items()):
        width, order = (2.0, 3.0) if position == 0 else (0.9, 2.0)
        axes.stairs(
            values,
            hours_B,
            baseline=None,
            label=series,
            color=shades[position],
            linewidth=width,
            zorder=order,
        )


def legend(axes: "Axes") -> None:
    """Beside the axes, where it covers no line."""
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))


def common_edges(outcomes: Sequence[Outcome]) -> FloatArray:
    """Equal intervals from the first submission to the median end: one slow policy does not compress the others."""
    ends_s = sorted(outcome.result.makespan_s for outcome in outcomes)
    start_s = outcomes[0].run.workload.jobs[0].submitted_at_s
    return start_s + np.linspace(0.0, max(ends_s[len(ends_s) // 2], 1.0), NUM_INTERVALS + 1)


def png(figure: Figure) -> bytes:
    """The same bytes for the same picture."""
    written = io.BytesIO()
    figure.savefig(written, dpi=DPI, format="png", metadata={"Software": None})
    return written.getvalue()
