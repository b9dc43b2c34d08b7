"""Throughput profiles as text."""

from collections.abc import Iterable
from itertools import groupby

from elasticflow.cli.terminal_output import say, say_line
from elasticflow.history.formatting import gpus_by_type_in_words, gpus_counted
from elasticflow.history.profile_views import ProfileView
from elasticflow.history.tables import table
from elasticflow.history.type_views import SplitView, TypesView
from elasticflow.sdk.times import clock_time

_CURVE = ("GPUS", "ITERATIONS/S", "SAMPLES/S", "SPEEDUP", "EFFICIENCY", "PROFILED", "")
_STEPS = ("GPU TYPE", "GPUS", "VIRTUAL NODES", "SAMPLES", "STEP MS", "SAMPLES/S", "")


def show_profile(view: ProfileView) -> None:
    """A table for each GPU type on which it is measured."""
    for each in (view, *view.on_other_types):
        on_type = f", on {each.gpu_type}" if each.gpu_type else ""
        say_line(f"{each.profile_key}, {each.global_batch_size} samples an iteration{on_type}")
        rows = (
            (
                str(point.num_gpus),
                f"{point.iterations_per_s:.4g}",
                f"{point.samples_per_s:.4g}",
                f"{point.speedup:.2f}",
                f"{point.efficiency:.0%}",
                clock_time(point.measured_at_s) if point.measured_at_s is not None else "-",
                "" if point.is_in_range else f"not in {each.gpu_range}",
            )
            for point in each.points
        )
        say(table(*_CURVE, rows=rows, right=_CURVE[:6]))
        if not each.complete:
            say_line("other numbers of GPUs are not yet measured", "yellow")


def show_types(view: TypesView) -> None:
    """Steps of one GPU of each type, and the recommended split."""
    divided = "" if view.num_virtual_nodes is None else f" in {view.num_virtual_nodes} virtual nodes"
    say_line(f"{view.training_function}, {view.global_batch_size} samples an iteration{divided}")
    rows = list[tuple[str, ...]]()
    for each in view.types:
        first = (each.gpu_type, str(each.num_gpus))
        points = [
            (
                str(point.num_virtual_nodes),
                str(point.num_samples),
                f"{1000 * point.step_s:.4g}",
                f"{point.samples_per_s:.4g}",
                "measured" if point.measured else "predicted",
            )
            for point in each.steps
        ]
        rows += [(*(first if not number else ("", "")), *point) for number, point in enumerate(points)]
        if not points:
            rows.append((*first, "-", "-", "-", "-", "its profiling run failed" if each.failure else "unknown"))
    say(table(*_STEPS, rows=rows, right=_STEPS[1:6]))
    for each in view.types:
        if each.failure:
            say_line(f"on {each.gpu_type}, which jobs of this profile do not use: {each.failure}", "yellow")
        if each.predicted_from:
            say_line(
                f"{each.gpu_type} is predicted from {each.predicted_from} by other profiles that are known on both; "
                "no promise and no split rests on it"
            )
        if each.communication_s:
            marked = "measured" if each.communication_measured else "predicted"
            by_number = (f"{1000 * s:.3g} ms on {gpus_counted(n)}" for n, s in each.communication_s.items())
            say_line(f"communication on {each.gpu_type}, {marked}: {', '.join(by_number)}")
    if view.split is None:
        say_line(f"no split: {view.obstacle}", "yellow")
    else:
        _show_split(view.split)


def _show_split(split: SplitView) -> None:
    parts = "; ".join(f"{gpu_type} {_in_words(counts)}" for gpu_type, counts in split.virtual_nodes.items())
    say_line(f"best split over {gpus_by_type_in_words(split.num_gpus)}, in virtual nodes of each GPU: {parts}")
    alone = [
        f"{gpu_type} {'does not fit' if alone_s is None else f'{1000 * alone_s:.4g} ms'}"
        for gpu_type, alone_s in split.alone_s.items()
    ]
    speedup = "" if split.speedup is None else f", {split.speedup:.2f} times as fast as the best type alone"
    measured = "-" if split.measured_step_s is None else f"{1000 * split.measured_step_s:.4g} ms"
    corrected = "" if split.correction == 1.0 else f", {split.correction:.2f} times that of the profile by other mixes"
    say_line(
        f"predicted step {1000 * split.step_s:.4g} ms{corrected}{speedup} ({', '.join(alone)}); "
        f"measured step {measured}"
    )


def _in_words(counts: Iterable[int]) -> str:
    """As "7 + 3 x 6"."""
    groups = [(count, len(list(same))) for count, same in groupby(counts)]
    return " + ".join(f"{count}" if number == 1 else f"{number} x {count}" for count, number in groups)
