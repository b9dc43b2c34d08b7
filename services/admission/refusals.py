"""Why not: what is wrong with a wish, and why a deadline cannot be promised, in sentences with numbers."""

import math
from datetime import UTC, datetime

from shared.messages.job import JobClass, JobSpec
from shared.messages.pool_state import PoolState
from shared.scheduling.job_table import SchedulableJob


def problems_of(state: PoolState, spec: JobSpec, now_s: float) -> list[str]:
    """What no schedule can mend, every field at once."""
    problems = size_problems(state, spec)
    deadline_s = spec.resolved_deadline_s(now_s)
    if spec.deadline_s is not None and spec.deadline_in_s is not None:
        problems.append("deadline_s and deadline_in_s: give one of them")
    if spec.job_class is JobClass.SLO and deadline_s is None:
        problems.append("deadline_s: a job of class slo needs a deadline; without one choose best_effort")
    if deadline_s is not None and deadline_s <= now_s:
        when, late_s = datetime.fromtimestamp(deadline_s, UTC).isoformat(" ", "seconds"), now_s - deadline_s
        problems.append(f"deadline_s: {when} is {late_s:.0f} s in the past; choose a later one")
    return problems


def size_problems(state: PoolState, spec: JobSpec) -> list[str]:
    measured = state.curves.get(spec.profile_key)
    if measured is None or measured.dataset_size is None or spec.global_batch_size <= measured.dataset_size:
        return []
    size = measured.dataset_size
    return [
        f"global_batch_size: {spec.global_batch_size} is more than the data set's {size} samples; lower it"
    ]


def why_late(
    state: PoolState, spec: JobSpec, job: SchedulableJob, earliest_s: float | None, now_s: float
) -> str:
    """The rejection in a sentence with numbers."""
    window_s = job.deadline_s + state.config.deadline_slack_s - now_s
    most = job.curve.max_useful_gpus
    fastest = job.curve.throughput(most)
    alone_s = spec.max_iterations / fastest + job.resize_cost.seconds(most)
    return (
        f"{spec.max_iterations} iterations in {window_s:.0f} s do not fit: alone on {most} GPUs they take "
        f"{alone_s:.0f} s ({fastest:.3g}/s), beside the promises already made {_offered(state, earliest_s, now_s)}"
    )


def why_dear(
    state: PoolState, gpu_seconds: float, dearest: float, earliest_s: float | None, now_s: float
) -> str:
    """The rejection of a job that would fit but crowd out too much."""
    return (
        f"it would hold {gpu_seconds:.0f} GPU-seconds in its window, where jobs of up to {dearest:.0f} are asked for "
        f"often enough to fill the pool: at its price of a GPU-second it is not worth it; "
        f"{_offered(state, earliest_s, now_s)}"
    )


def _offered(state: PoolState, earliest_s: float | None, now_s: float) -> str:
    """earliest_s: of planned time, which ends before the deadline that is told."""
    if earliest_s is None:
        return "no deadline would be met"
    return f"a deadline in {math.ceil(earliest_s + state.config.deadline_slack_s - now_s)} s would be met"
