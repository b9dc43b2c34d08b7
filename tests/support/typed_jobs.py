"""Tables, jobs and active jobs for tests of pools of several GPU types."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.heterogeneous.rounds import ActiveJob, Configurations, ThroughputTable, TypedJob


def table(**rates: Mapping[str, Mapping[int, float]]) -> ThroughputTable:
    """By model, by type, by number of GPUs."""
    return ThroughputTable(source="table.csv", rates=rates)


def typed_job(
    job_id: str, model: str, num_iterations: float, *, arrived_at_s: float = 0.0, levels: tuple[int, ...] = (1, 2)
) -> TypedJob:
    return TypedJob(job_id=job_id, model=model, num_iterations=num_iterations, arrived_at_s=arrived_at_s, levels=levels)


def active_job(
    num_gpus_CI: Sequence[Sequence[int]],
    throughput_C: Sequence[float],
    *,
    equal_throughput: float = 1.0,
    left_iterations: float = 100.0,
    deadline_s: float = float("inf"),
) -> ActiveJob:
    job = TypedJob(
        job_id="job",
        model="model",
        num_iterations=left_iterations,
        arrived_at_s=0.0,
        levels=(1,),
        deadline_s=deadline_s,
    )
    choices = Configurations(np.array(num_gpus_CI), np.array(throughput_C, float), equal_throughput)
    return ActiveJob(job, choices, left_iterations)
