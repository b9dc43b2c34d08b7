"""The bound on published traces, where available: equal to the numbers of an independent program."""

from pathlib import Path

import pytest

from elasticflow.simulator.bound import clairvoyant_bound, feasible_alone, hindsight_schedule
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.workload.throughput_tables import NO_TYPE, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import Workload
from tests.support.resize_schedules import problems

SHARED = Path(__file__).parents[2].parent / "shared"
pytestmark = pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="needs ../shared/traces")


def published(name: str) -> Workload:
    return read_trace(SHARED / "traces" / f"{name}.csv", read_throughputs(SHARED / "throughputs" / "A100"))


def test_the_bound_of_itp_cluster10_at_every_scarcity() -> None:
    workload = published("itp_cluster10")
    bounds = {
        num_gpus: clairvoyant_bound(workload, {NO_TYPE: num_gpus}, reference_cost(num_gpus))
        for num_gpus in (256, 128, 64, 32, 16, 8)
    }
    assert all(bound.exact for bound in bounds.values())
    assert [round(bound.jobs_met, 2) for bound in bounds.values()] == [258, 258, 258, 255.25, 238.43, 205.43]
    assert [bound.whole_jobs_met for bound in bounds.values()] == [258, 258, 258, 255, 238, 205]


@pytest.mark.parametrize(
    ("name", "num_jobs"), [("itp_cluster01", 1571), ("itp_cluster03", 2458), ("itp_cluster06", 2034)]
)
def test_the_jobs_of_large_traces_that_are_feasible_alone(name: str, num_jobs: int) -> None:
    """A cluster of 256 GPUs or more starts jobs 5 s later than a small one."""
    assert len(feasible_alone(published(name), {NO_TYPE: 512}, reference_cost(512))) == num_jobs


def test_merged_intervals_stay_above_the_bound_and_come_down_to_it() -> None:
    workload, cost = published("itp_cluster10"), reference_cost(16)
    merged = [
        clairvoyant_bound(workload, {NO_TYPE: 16}, cost, max_intervals).jobs_met for max_intervals in (30, 120, 480)
    ]
    assert all(238.4336 < met <= 257 for met in merged)
    assert merged == sorted(merged, reverse=True)
    assert merged[-1] < 239


def test_hindsight_comes_close_to_the_bound_of_itp_cluster10() -> None:
    workload = published("itp_cluster10")
    for num_gpus, at_least in [(64, 258), (16, 232)]:
        cost = reference_cost(num_gpus)
        made = hindsight_schedule(workload, {NO_TYPE: num_gpus}, cost, moves=500)
        assert at_least <= made.met <= clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost).whole_jobs_met
        assert problems(made, workload, {NO_TYPE: num_gpus}, cost) == []
