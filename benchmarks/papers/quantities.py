"""What claims measure, by name: numbers of a simulated run, of a workload alone, or of a scaling curve."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.trace.plots import efficiency
from elasticflow.simulator.trace.result import HOUR_S, Result
from elasticflow.simulator.trace.simulated_run import completion_numbers
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import Workload

FIRST_HOURS = 100.0  # of Figure 10 of ElasticFlow

Numbers = Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """title: for pictures and tables. is_of_run: a policy must run; else of a workload or a curve alone."""

    title: str
    is_of_run: bool = True


QUANTITIES: Mapping[str, Quantity] = {
    "deadline_satisfactory_ratio": Quantity(title="deadline satisfactory ratio"),
    "cluster_efficiency_first_100_h": Quantity(title="mean cluster efficiency in the first 100 hours"),
    "makespan_h": Quantity(title="makespan, hours"),
    "mean_jct_s": Quantity(title="mean completion time, s"),
    "mean_jct_small_s": Quantity(title="mean completion time of small jobs, s"),
    "mean_jct_medium_s": Quantity(title="mean completion time of medium jobs, s"),
    "mean_jct_large_s": Quantity(title="mean completion time of large jobs, s"),
    "mean_jct_best_effort_s": Quantity(title="mean completion time of best-effort jobs, s"),
    "scheduling_interval_s": Quantity(title="mean time between two changes of the plan, s"),
    "share_with_time_enough": Quantity(title="jobs whose deadline is a duration away or more", is_of_run=False),
    "part_of_linear_scaling": Quantity(title="throughput over that of linear scaling", is_of_run=False),
}


def run_numbers(result: Result) -> Numbers:
    """All numbers of one run; those of claims are among them."""
    start_s = result.workload.jobs[0].submitted_at_s
    first_s = np.array([start_s, start_s + FIRST_HOURS * HOUR_S])
    return {
        "deadline_satisfactory_ratio": result.deadline_satisfactory_ratio,
        "met": result.num_met(),
        "admitted": result.num_admitted,
        "late": result.num_late(),
        "unfinished": result.num_unfinished,
        "resizes": result.num_resizes,
        "gpu_hours": result.gpu_hours,
        "cluster_efficiency": result.cluster_efficiency,
        "cluster_efficiency_first_100_h": float(efficiency(result).means(first_s)[0]),
        "makespan_h": result.makespan_s / HOUR_S,
        **completion_numbers(result),
    }


def share_with_time_enough(workload: Workload) -> float | None:
    """The share of the jobs with a hard deadline whose deadline is their duration away or more.

    A scheduler that never widens a job can meet no others.
    """
    dated = [job for job in workload.jobs if job.job_class is JobClass.SLO and job.deadline_s is not None]
    enough = sum(job.deadline_s - job.submitted_at_s >= job.duration_s for job in dated if job.deadline_s is not None)
    return enough / len(dated) if dated else None


def part_of_linear_scaling(tables: Throughputs, model: str, batch_size: int, num_gpus: int) -> float | None:
    """The part of linear scaling; None if the tables lack the model, the batch size or a number of GPUs."""
    if batch_size not in tables.batch_sizes(model):
        return None
    curve = tables.curve(model, batch_size)
    alone = curve.throughput(1)
    return curve.throughput(num_gpus) / (num_gpus * alone) if alone and curve.throughput(num_gpus) else None
