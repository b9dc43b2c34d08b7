"""The pictures of a result: what overlaps, what a legend covers, and what is too small to be seen."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.allocation.allocation import IdleCause
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.padding.windows_and_loads import IdleWindow
from elasticflow.simulator.trace.cluster_state import Occupancy
from elasticflow.simulator.trace.plots import DPI, pictures
from elasticflow.simulator.trace.result import Fate, IdleTime, Result
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload

HOUR_S, DAY_S = 3_600.0, 86_400.0


def fate(number: int, *, submitted_s: float, deadline_s: float, finished_s: float | None) -> Fate:
    job = TraceJob(
        job_id=f"a-job-with-a-long-name-{number}",
        submitted_at_s=submitted_s,
        num_iterations=1_000,
        model_name="net",
        global_batch_size=64,
        deadline_s=deadline_s,
        job_class=JobClass.SLO,
        curve=ScalingCurve((4,), (2.0,)),
    )
    held = Occupancy(
        job_id=job.job_id,
        generation=1,
        num_gpus_by_type={"": 4},
        placed_at_s=submitted_s,
        starts_s=submitted_s,
        left_at_s=finished_s or deadline_s,
        iterations=1_000.0,
        iterations_per_s=2.0,
        stops_s=submitted_s,
    )
    return Fate(
        job=job,
        admitted=True,
        admitted_on="",
        rejection=None,
        decided_at_s=submitted_s,
        finished_at_s=finished_s,
        occupancies=(held,),
    )


def result(*fates: Fate, ends_s: float) -> Result:
    return Result(
        workload=Workload.of("test", [each.job for each in fates]),
        cluster=ClusterShape(num_nodes=2, gpus_per_node=8),
        fates=fates,
        outages=(),
        num_migrations=0,
        ended_at_s=ends_s,
        partial=False,
    )


def of_length(length_s: float, num_jobs: int, late_s: float = 0.0) -> Result:
    """Jobs after one another, of which the last is late."""
    each_s = length_s / num_jobs
    jobs = [
        fate(
            number, submitted_s=number * each_s, deadline_s=(number + 0.9) * each_s, finished_s=(number + 0.9) * each_s
        )
        for number in range(num_jobs)
    ]
    jobs[-1] = replace(jobs[-1], finished_at_s=(num_jobs - 0.1) * each_s + late_s)
    return result(*jobs, ends_s=length_s)


def drawn(of: Result, name: str) -> Figure:
    figure = next(figure for each, figure in pictures(of) if each == name)
    figure.set_dpi(DPI)
    figure.draw_without_rendering()
    return figure


def overlapping(axis: Axis) -> list[tuple[str, str]]:
    """Neighbouring labels of ticks, of those that are shown, that share pixels."""
    low, high = sorted(axis.get_view_interval())
    shown = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high and tick.label1.get_text()]
    pairs = pairwise(shown)
    return [(a.get_text(), b.get_text()) for a, b in pairs if a.get_window_extent().overlaps(b.get_window_extent())]


LENGTHS = pytest.mark.parametrize(
    ("length_s", "num_jobs"), [(40.0, 1), (3 * HOUR_S, 7), (30 * HOUR_S, 40), (400 * DAY_S, 12_345)], ids=str
)


@LENGTHS
@pytest.mark.parametrize("name", ["gpus", "jobs", "efficiency"])
def test_labels_of_a_picture_overlap_neither_each_other_nor_the_axes(length_s: float, num_jobs: int, name: str) -> None:
    figure = drawn(of_length(length_s, num_jobs, late_s=length_s / 20), name)
    (axes,) = figure.axes
    for axis in (axes.xaxis, axes.yaxis):
        assert len(axis.get_major_ticks()) > 1
        assert not overlapping(axis)
        title = axis.label.get_window_extent()
        for tick in axis.get_major_ticks():
            if tick.label1.get_text():
                assert not title.overlaps(tick.label1.get_window_extent()), tick.label1.get_text()
        assert not title.overlaps(axes.get_window_extent())


@LENGTHS
@pytest.mark.parametrize("name", ["gpus", "jobs", "efficiency"])
def test_a_legend_covers_nothing_and_is_whole(length_s: float, num_jobs: int, name: str) -> None:
    figure = drawn(of_length(length_s, num_jobs, late_s=length_s / 20), name)
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    place, whole = legend.get_window_extent(), figure.bbox
    assert not place.overlaps(axes.get_window_extent())
    assert not any(place.overlaps(axis.label.get_window_extent()) for axis in (axes.xaxis, axes.yaxis))
    assert whole.x0 <= place.x0 < place.x1 <= whole.x1
    assert whole.y0 <= place.y0 < place.y1 <= whole.y1
    assert axes.get_window_extent().width > whole.width / 2, "the picture is not all legend"


def red_pixels(figure: Figure) -> int:
    """Pixels of the axes in the red of what is late, also where it is translucent."""
    canvas: Any = figure.canvas
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba()).astype(int)
    box = figure.axes[0].get_window_extent()
    height = pixels.shape[0]
    inside = pixels[height - int(box.y1) : height - int(box.y0), int(box.x0) : int(box.x1)]
    return int(((inside[..., 0] - inside[..., 1] > 60) & (inside[..., 0] - inside[..., 2] > 60)).sum())


@pytest.mark.parametrize("late_s", [1.0, 60.0, HOUR_S, 10 * HOUR_S])
def test_the_overshoot_of_a_late_job_can_be_seen_however_short_it_is(late_s: float) -> None:
    """In a picture of 30 hours, 1 s is a hundredth of a pixel."""
    in_time, late = of_length(30 * HOUR_S, 2), of_length(30 * HOUR_S, 2, late_s=late_s)
    assert red_pixels(drawn(in_time, "jobs")) == 0
    (axes,) = drawn(late, "jobs").axes
    (bar,) = (line for line in axes.lines if line.get_label() == "by how much")
    xs, ys = np.asarray(bar.get_xdata()), np.asarray(bar.get_ydata())
    assert xs[1] - xs[0] == pytest.approx(late_s / HOUR_S)
    assert ys.tolist() == [1, 1]
    without = drawn(late, "jobs")
    next(line for line in without.axes[0].lines if line.get_label() == "by how much").set_visible(False)
    assert red_pixels(drawn(late, "jobs")) - red_pixels(without) >= 12, "three pixels wide, four high, at least"


def test_a_job_that_never_ends_is_late_until_the_end_of_the_picture() -> None:
    fates = of_length(30 * HOUR_S, 2).fates
    endless = result(fates[0], replace(fates[1], finished_at_s=None), ends_s=50 * HOUR_S)
    (axes,) = drawn(endless, "jobs").axes
    (bar,) = (line for line in axes.lines if line.get_label() == "by how much")
    assert np.asarray(bar.get_xdata()).tolist() == pytest.approx([28.5 / 24, 50.0 / 24])


def test_the_picture_of_idle_time_has_legends_beside_its_lines() -> None:
    idle = replace(of_length(40.0, 1), idle_time=idle_time())
    figure = drawn(idle, "idle")
    for axes in figure.axes:
        assert not overlapping(axes.xaxis)
        assert not overlapping(axes.yaxis)
        if (legend := axes.get_legend()) is not None:
            assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def idle_time() -> IdleTime:
    lengths_s = (0.02, 3.0, 40.0, 5_000.0, 90_000.0)
    windows = tuple(IdleWindow(gpu="n:0", start_s=0.0, end_s=length_s) for length_s in lengths_s)
    return IdleTime(gpu_seconds={cause: 1_000.0 * number for number, cause in enumerate(IdleCause)}, windows=windows)
