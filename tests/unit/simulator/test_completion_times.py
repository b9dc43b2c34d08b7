"""Completion times, queueing and utilization of jobs that share one GPU in turn."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import FREE
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.result import Result
from elasticflow.simulator.trace.simulated_run import completion_numbers
from elasticflow.simulator.trace.simulation import Simulation
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload
from tests.support.trace_jobs import job

ONE = ClusterShape(num_nodes=1, gpus_per_node=1)


def best_effort(job_id: str, seconds: int, at_s: float, size_gpu_s: float) -> TraceJob:
    """It trains for so many seconds on its one GPU; its trace claims another size."""
    made = job(job_id, seconds, at_s, None, job_class=JobClass.BEST_EFFORT)
    return replace(made, num_gpus=2, duration_s=size_gpu_s / 2)


def simulated(*jobs: TraceJob, cluster: ClusterShape = ONE) -> Result:
    return Simulation(Workload.of("test", jobs), cluster, TrainingModel(resize_cost=FREE)).run()


def test_mean_and_median_by_size_class() -> None:
    sizes_gpu_s = {"a": 9_999.0, "b": 5.0, "c": 5.0, "d": 1e4, "e": 2e5}
    jobs = [best_effort(name, 10 * (at + 1), 100.0 * at, size) for at, (name, size) in enumerate(sizes_gpu_s.items())]
    numbers = completion_numbers(simulated(*jobs))
    found = {
        size or "all": (numbers[f"mean_jct_{size}s"], numbers[f"median_jct_{size}s"])
        for size in ("", "small_", "medium_", "large_")
    }
    assert found == {
        "all": (pytest.approx(30.0), pytest.approx(30.0)),
        "small_": (pytest.approx(20.0), pytest.approx(20.0)),
        "medium_": (pytest.approx(40.0), pytest.approx(40.0)),
        "large_": (pytest.approx(50.0), pytest.approx(50.0)),
    }


def test_a_job_of_unknown_size_is_in_no_class() -> None:
    numbers = completion_numbers(simulated(best_effort("a", 10, 0.0, 0.0)))
    assert numbers["mean_jct_s"] == pytest.approx(10.0)
    for size in ("small", "medium", "large"):
        assert numbers[f"mean_jct_{size}_s"] is numbers[f"median_jct_{size}_s"] is None


def test_queueing_utilization_and_interval_between_decisions() -> None:
    """Of three jobs of 10 s the second waits for the first; the third comes 10 s after the second has ended."""
    numbers = completion_numbers(
        simulated(*(best_effort(name, 10, at, 1.0) for name, at in (("a", 0), ("b", 4), ("c", 30))))
    )
    assert numbers["mean_queueing_s"] == pytest.approx(2.0)
    assert numbers["median_queueing_s"] == 0.0
    assert numbers["utilization"] == pytest.approx(30.0 / 40.0)
    assert numbers["scheduling_interval_s"] == pytest.approx(30.0 / 2)
    assert numbers["mean_jct_best_effort_s"] == numbers["mean_jct_s"] == pytest.approx((10.0 + 16.0 + 10.0) / 3)


def test_without_an_ended_job_there_are_no_times() -> None:
    numbers = completion_numbers(simulated(job("a", 1_000, 0.0, 10.0)))
    assert set(numbers.values()) == {None}
