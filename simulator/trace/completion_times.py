"""How long jobs take and wait in a result: means, medians, classes of size, utilization, intervals between decisions.

Source of the classes: Amoeba, Table 2; a size is requested GPUs times duration.
"""

from collections.abc import Iterable, Mapping
from statistics import mean, median

from elasticflow.simulator.trace.result import HOUR_S, Fate, Result

SIZES_GPU_S = {"small": (0.0, 1e4), "medium": (1e4, 2e5), "large": (2e5, float("inf"))}  # from, and to below


def completion_numbers(result: Result) -> Mapping[str, float | None]:
    """By name; None where no job ended that would count.

    Times run from a job's submission to its end, or to its first GPUs (queueing), over the jobs that ended. A job of
    unknown size is in no class. utilization: GPU-hours held over those of the pool, over the makespan.
    scheduling_interval_s: between two instants at which any job got other GPUs.
    """
    ended = [fate for fate in result.fates if fate.finished_at_s is not None]
    by_size = {
        name: [fate for fate in ended if least <= _size_gpu_s(fate) < most and _size_gpu_s(fate)]
        for name, (least, most) in SIZES_GPU_S.items()
    }
    placed_at_s = sorted({occupancy.placed_at_s for fate in result.fates for occupancy in fate.occupancies})
    spans_h = result.cluster.num_gpus * result.makespan_s / HOUR_S
    return {
        **_mean_and_median("jct", map(_jct_s, ended)),
        **{
            name: value
            for size, fates in by_size.items()
            for name, value in _mean_and_median(f"jct_{size}", map(_jct_s, fates)).items()
        },
        "mean_jct_best_effort_s": result.mean_jct_best_effort_s,
        **_mean_and_median("queueing", map(_queueing_s, ended)),
        "utilization": result.gpu_hours / spans_h if spans_h else None,
        "scheduling_interval_s": (
            (placed_at_s[-1] - placed_at_s[0]) / (len(placed_at_s) - 1) if len(placed_at_s) > 1 else None
        ),
    }


def _mean_and_median(what: str, times_s: Iterable[float]) -> Mapping[str, float | None]:
    known = list(times_s)
    return {
        f"mean_{what}_s": mean(known) if known else None,
        f"median_{what}_s": median(known) if known else None,
    }


def _jct_s(fate: Fate) -> float:
    assert fate.finished_at_s is not None
    return fate.finished_at_s - fate.job.submitted_at_s


def _queueing_s(fate: Fate) -> float:
    return min(occupancy.placed_at_s for occupancy in fate.occupancies) - fate.job.submitted_at_s


def _size_gpu_s(fate: Fate) -> float:
    return fate.job.num_gpus * fate.job.duration_s
