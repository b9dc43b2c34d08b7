"""How long jobs take and wait in a result: means, medians, classes of size, utilization, intervals between decisions.

Source of the classes: Amoeba, Table 2; a size is requested GPUs times duration.
"""

from collections.abc import Iterable, Mapping
from statistics import mean, median

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.trace.result import HOUR_S, Fate, Result

SMALL_GPU_S, LARGE_GPU_S = 1e4, 2e5  # limits between small, medium and large jobs


def completion_numbers(result: Result) -> Mapping[str, float | None]:
    """By name; None where no job ended that would count.

    Times run from a job's submission to its end, or to its first GPUs (queueing), over the jobs that ended.
    utilization: GPU-hours held over those of the pool, over the makespan. scheduling_interval_s: between two instants
    at which any job got other GPUs.
    """
    ended = [fate for fate in result.fates if fate.finished_at_s is not None]
    sizes = {"small": (0.0, SMALL_GPU_S), "medium": (SMALL_GPU_S, LARGE_GPU_S), "large": (LARGE_GPU_S, float("inf"))}
    placed_at_s = sorted({occupancy.placed_at_s for fate in result.fates for occupancy in fate.occupancies})
    spans_h = result.cluster.num_gpus * result.makespan_s / HOUR_S
    return {
        "mean_jct_s": _mean(map(_jct_s, ended)),
        "median_jct_s": median(map(_jct_s, ended)) if ended else None,
        **{
            f"mean_jct_{name}_s": _mean(_jct_s(fate) for fate in ended if least <= _size_gpu_s(fate) < most)
            for name, (least, most) in sizes.items()
        },
        "mean_jct_best_effort_s": _mean(_jct_s(fate) for fate in ended if fate.job.job_class is JobClass.BEST_EFFORT),
        "mean_queueing_s": _mean(map(_queueing_s, ended)),
        "median_queueing_s": median(map(_queueing_s, ended)) if ended else None,
        "utilization": result.gpu_hours / spans_h if spans_h else None,
        "scheduling_interval_s": (
            (placed_at_s[-1] - placed_at_s[0]) / (len(placed_at_s) - 1) if len(placed_at_s) > 1 else None
        ),
    }


def _jct_s(fate: Fate) -> float:
    assert fate.finished_at_s is not None
    return fate.finished_at_s - fate.job.submitted_at_s


def _queueing_s(fate: Fate) -> float:
    return min(occupancy.placed_at_s for occupancy in fate.occupancies) - fate.job.submitted_at_s


def _size_gpu_s(fate: Fate) -> float:
    return fate.job.num_gpus * fate.job.duration_s


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return mean(known) if known else None
