"""A result as pictures (matplotlib, the extra `plot`): GPUs by job, submitted and admitted jobs, efficiency, idle."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.trace.cluster_state import Occupancy
from elasticflow.simulator.trace.result import HOUR_S, Fate, IdleTime, Result, rate_alone

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- timeline ------------------------------------------------------------------------------------------
# A result over time: step functions of the jobs' occupancies, and their means over intervals.
#
# Axes: S = occupancies, B = edges between intervals of time.

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """A sum of pieces, each constant from one instant to another; shapes (S,)."""

    from_s_S: FloatArray
    to_s_S: FloatArray
    value_S: FloatArray

    @staticmethod
    def of(pieces: Iterable[tuple[float, float, float]]) -> "Pieces":
        """pieces: (from_s, to_s, value)."""
        table = np.array(list(pieces), dtype=np.float64).reshape(-1, 3)
        return Pieces(from_s_S=table[:, 0], to_s_S=table[:, 1], value_S=table[:, 2])

    def means(self, edges_s_B: FloatArray) -> FloatArray:
        """The mean of the sum between neighbouring edges, shape (B - 1,)."""
        at_s = np.concatenate((self.from_s_S, self.to_s_S))
        order = np.argsort(at_s, kind="stable")
        at_s, steps = at_s[order], np.concatenate((self.value_S, -self.value_S))[order]
        if not len(at_s):
            return np.zeros(len(edges_s_B) - 1)
        until_s = np.concatenate(([0.0], np.cumsum(np.cumsum(steps)[:-1] * np.diff(at_s))))
        return np.diff(np.interp(edges_s_B, at_s, until_s)) / np.diff(edges_s_B)


def held_gpus(result: Result, job_ids: Iterable[str] | None = None) -> Pieces:
    """GPUs of these jobs, or of all."""
    wanted = None if job_ids is None else set(job_ids)
    return Pieces.of(
        (occupancy.placed_at_s, occupancy.left_at_s, occupancy.num_gpus)
        for fate in result.fates
        if wanted is None or fate.job.job_id in wanted
        for occupancy in fate.occupancies
    )


def efficiency(result: Result) -> Pieces:
    """Equation 8 (ElasticFlow, section 6.1): throughput of all GPUs relative to that of one GPU, over their number."""
    return Pieces.of(
        (from_s, to_s, iterations_per_s / rate_alone(fate.job, occupancy) / result.cluster.num_gpus)
        for fate in result.fates
        for occupancy in fate.occupancies
        for from_s, to_s, iterations_per_s in _trained(occupancy)
        if to_s > from_s
    )


def _trained(occupancy: Occupancy) -> Iterator[tuple[float, float, float]]:
    """Start, end and speed of its training: until the switch, and after it."""
    stops_s = min(occupancy.stops_s, occupancy.left_at_s)
    yield occupancy.placed_at_s, stops_s, occupancy.previous_iterations_per_s
    yield occupancy.starts_s, occupancy.left_at_s, occupancy.iterations_per_s


# --- plots ---------------------------------------------------------------------------------------------

MAX_JOBS_DRAWN = 12  # each in its own colour; the others share one
NUM_INTERVALS = 300
SIZE_INCHES, DPI = (9.0, 3.6), 110
_OVERSHOOT: dict[str, Any] = {
    "color": "tab:red",
    "alpha": 0.45,
    "linewidth": 5,
    "solid_capstyle": "butt",
    "marker": "|",  # of both ends: 1 s in days would be no pixel
    "markersize": 8,
    "markeredgewidth": 2,
}
_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "fontsize": 8, "frameon": False}
UNITS = ((2 * 86_400.0, "days", 86_400.0), (2 * 3_600.0, "hours", 3_600.0), (0.0, "seconds", 1.0))


def require_matplotlib() -> None:
    """Raise BadSettings before a long run if the extra is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BadSettings(("--out draws with matplotlib: pip install matplotlib",)) from None


def write_plots(result: Result, folder: Path) -> None:
    """gpus.png, jobs.png, efficiency.png; idle.png if the idle time was measured."""
    for name, figure in pictures(result):
        figure.savefig(folder / f"{name}.png", dpi=DPI)


def pictures(result: Result) -> "Iterator[tuple[str, Figure]]":
    """Each picture, by the name of its file."""
    for name, draw in (("gpus", _gpus), ("jobs", _jobs), ("efficiency", _efficiency)):
        figure, axes = _canvas()
        span = _Span(result)
        draw(axes, result, span)
        axes.set_xlabel(f"{span.unit} since the first submission")
        axes.set_xlim(0, span.last)
        axes.set_ylim(bottom=0)
        yield name, figure
    if result.idle_time is not None and result.idle_time.windows:
        yield "idle", _idle_time(result.idle_time)


class _Span:
    """The time axis: edges of equal intervals, in a readable unit."""

    def __init__(self, result: Result) -> None:
        start_s = result.workload.jobs[0].submitted_at_s
        length_s = max(result.ended_at_s - start_s, 1.0)
        self.start_s = start_s
        self.unit, self._unit_s = next((unit, size) for least, unit, size in UNITS if length_s >= least)
        self.edges_s_B = start_s + np.linspace(0.0, length_s, NUM_INTERVALS + 1)
        self.last = length_s / self._unit_s

    def shown(self, at_s: "np.ndarray") -> "np.ndarray":
        return (at_s - self.start_s) / self._unit_s

    def steps(self, pieces: Pieces) -> "np.ndarray":
        """Means over the intervals for `step(where="post")`: the last one twice."""
        means = pieces.means(self.edges_s_B)
        return np.append(means, means[-1])


def _canvas() -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    return figure, axes


def _gpus(axes: "Axes", result: Result, span: _Span) -> None:
    """GPUs held, stacked: the jobs with the most GPU time each, the others together at the bottom."""
    by_use = sorted(result.fates, key=_by_use)
    named = [fate for fate in by_use[:MAX_JOBS_DRAWN] if fate.occupancies]
    layers = [span.steps(held_gpus(result, [fate.job.job_id])) for fate in named]
    labels = [fate.job.job_id[:12] for fate in named]
    others = [fate.job.job_id for fate in by_use[MAX_JOBS_DRAWN:] if fate.occupancies]
    colours = _colours(len(named))
    if others:
        layers.insert(0, span.steps(held_gpus(result, others)))
        labels.insert(0, f"{len(others)} more jobs")
        colours.insert(0, "0.8")
    if layers:
        axes.stackplot(span.shown(span.edges_s_B), layers, labels=labels, colors=colours, step="post")
        handles, texts = axes.get_legend_handles_labels()
        axes.legend(handles[::-1], texts[::-1], **_BESIDE)
    else:
        _say_empty(axes, "No job was admitted: the GPUs that jobs hold would be stacked here.")
    axes.axhline(result.cluster.num_gpus, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylabel("GPUs held")


def _jobs(axes: "Axes", result: Result, span: _Span) -> None:
    """Jobs so far: submitted, admitted, ended by their deadline, and past it, with the time by which each was late."""
    admitted_s = sorted(fate.decided_at_s for fate in result.fates if fate.admitted and fate.decided_at_s is not None)
    met_s = sorted(fate.finished_at_s for fate in result.fates if fate.met and fate.finished_at_s is not None)
    from matplotlib.ticker import MaxNLocator

    late = sorted(_overshoots(result))
    widths = {"submitted": 4.0}  # wider, because an admission may hide it
    for label, at_s, colour in (
        ("submitted", [fate.job.submitted_at_s for fate in result.submitted], "0.75"),
        ("admitted", admitted_s, "tab:blue"),
        ("ended by their deadline", met_s, "tab:green"),
        ("past their deadline", [deadline_s for deadline_s, _ in late], "tab:red"),
    ):
        if at_s or label != "past their deadline":
            counts = np.searchsorted(np.array(at_s), span.edges_s_B, side="right")
            axes.step(
                span.shown(span.edges_s_B),
                counts,
                where="post",
                label=label,
                color=colour,
                linewidth=widths.get(label, 1.5),
            )
    for number, times_s in enumerate(late, start=1):
        label = "by how much" if number == 1 else ""
        axes.plot(span.shown(np.array(times_s)), [number] * 2, label=label, **_OVERSHOOT)
    axes.set_ylabel("jobs")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(**_BESIDE)


def _overshoots(result: Result) -> Iterator[tuple[float, float]]:
    """The deadline and the end of each job that ended late, or the end of the simulation if it has not ended."""
    for fate in result.fates:
        deadline_s = fate.job.deadline_s
        if fate.admitted and deadline_s is not None and not fate.met:
            end_s = result.ended_at_s if fate.finished_at_s is None else fate.finished_at_s
            if end_s > deadline_s:
                yield deadline_s, end_s


def _say_empty(axes: "Axes", text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")


def _efficiency(axes: "Axes", result: Result, span: _Span) -> None:
    at = span.shown(span.edges_s_B)
    axes.step(at, span.steps(efficiency(result)), where="post", color="tab:blue", label="cluster efficiency")
    axes.axhline(result.cluster_efficiency, color="tab:blue", linewidth=0.8, linestyle=":", label="its mean")
    axes.set_ylabel("cluster efficiency")
    axes.legend(**_BESIDE)


def _idle_time(idle: IdleTime) -> "Figure":
    """Idle GPU-hours by cause; the lengths of windows, as parts of all windows and of the idle time."""
    figure, axes = _canvas()
    axes.remove()
    by_cause, by_length = figure.subplots(1, 2)
    hours = {cause.replace("_", " "): gpu_s / HOUR_S for cause, gpu_s in list(idle.gpu_seconds.items())[::-1]}
    by_cause.barh(list(hours), list(hours.values()), color="tab:orange")
    by_cause.set_xlabel("idle GPU-hours")
    lengths_s = np.sort([window.length_s for window in idle.windows])
    parts = np.arange(1, len(lengths_s) + 1) / len(lengths_s)
    by_length.step(lengths_s, parts, where="post", color="0.6", label="of all windows")
    by_length.step(lengths_s, np.cumsum(lengths_s) / lengths_s.sum(), where="post", label="of the idle time")
    by_length.set_xscale("log")
    by_length.set_xlabel("window of at most so many seconds")
    by_length.set_ylim(0, 1)
    by_length.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=8)
    return figure


def _by_use(fate: Fate) -> tuple[float, str]:
    return -fate.gpu_seconds, fate.job.job_id


def _colours(count: int) -> list[str]:
    """Light and dark of one hue alternate: adjacent layers are easy to distinguish."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps["tab20"].colors[:count]]  # pyright: ignore[reportAttributeAccessIssue]
