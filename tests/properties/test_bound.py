"""The clairvoyant bound, over odd workloads: what must never lower it, and what must never exceed it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.bound import clairvoyant_bound, feasible_alone, hindsight_schedule
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import Workload
from tests.support.example_specs import examples
from tests.support.resize_schedules import problems
from tests.support.workload_strategies import COSTS, workloads

CLOSE = 1e-5


@examples(60)
@given(workloads(), st.integers(1, 24), st.integers(1, 24), COSTS)
def test_more_gpus_never_lower_the_bound(workload: Workload, num_gpus: int, added: int, cost: ResizeCost) -> None:
    fewer = clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost)
    more = clairvoyant_bound(workload, {NO_TYPE: num_gpus + added}, cost)
    assert fewer.exact
    assert fewer.jobs_met <= more.jobs_met + CLOSE
    assert set(feasible_alone(workload, {NO_TYPE: num_gpus}, cost)) <= set(
        feasible_alone(workload, {NO_TYPE: num_gpus + added}, cost)
    )


@examples(60)
@given(workloads(), st.integers(1, 24), COSTS, st.integers(1, 60), st.data())
def test_a_later_deadline_or_a_shorter_job_never_lowers_the_bound(
    workload: Workload, num_gpus: int, cost: ResizeCost, later_s: int, data: st.DataObject
) -> None:
    eased = data.draw(st.sampled_from(workload.jobs))
    assert eased.deadline_s is not None
    easier = data.draw(
        st.sampled_from(
            [
                replace(eased, deadline_s=eased.deadline_s + later_s),
                replace(eased, num_iterations=(eased.num_iterations + 1) // 2),
            ]
        )
    )
    others = [job for job in workload.jobs if job is not eased]
    before = clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost).jobs_met
    assert (
        before <= clairvoyant_bound(Workload.of("eased", [*others, easier]), {NO_TYPE: num_gpus}, cost).jobs_met + CLOSE
    )


@examples(60)
@given(workloads(), st.integers(1, 24), COSTS, st.integers(1, 8))
def test_merged_intervals_never_lower_the_bound(
    workload: Workload, num_gpus: int, cost: ResizeCost, max_intervals: int
) -> None:
    exact = clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost)
    merged = clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost, max_intervals=max_intervals)
    assert exact.jobs_met <= merged.jobs_met + CLOSE
    assert merged.jobs_met <= merged.feasible_alone + CLOSE


@examples(60)
@given(workloads(), st.integers(1, 24), COSTS, st.integers(0, 2**32 - 1))
def test_schedules_with_hindsight_are_kept_to_the_last_bit_and_stay_below_the_bound(
    workload: Workload, num_gpus: int, cost: ResizeCost, seed: int
) -> None:
    made = hindsight_schedule(workload, {NO_TYPE: num_gpus}, cost, seed, moves=30)
    assert made.met <= clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost).whole_jobs_met
    assert problems(made, workload, {NO_TYPE: num_gpus}, cost) == []
