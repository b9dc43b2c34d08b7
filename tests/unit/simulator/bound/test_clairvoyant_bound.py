"""The clairvoyant bound on workloads small enough to be solved by hand."""

from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.bound import clairvoyant_bound, feasible_alone, price_ascent
from elasticflow.simulator.bound.clairvoyant_bound import least_gpu_seconds, solve
from elasticflow.simulator.bound.feasible_demand import FeasibleDemand, Grid
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import TraceJob, Workload
from tests.support.trace_jobs import job

FREE = ResizeCost()
POOR = ScalingCurve((1, 2), (1.0, 1.2))  # a second GPU adds little


def of(*jobs: TraceJob) -> Workload:
    return Workload.of("by hand", jobs)


def test_two_jobs_that_each_need_the_only_gpu_for_the_whole_window_count_for_one() -> None:
    bound = clairvoyant_bound(of(job("a", 10, 0, 10), job("b", 10, 0, 10)), {NO_TYPE: 1}, FREE)
    assert bound.jobs_met == pytest.approx(1.0)
    assert bound.whole_jobs_met == 1
    assert (bound.feasible_alone, bound.intervals, bound.exact) == (2, 1, True)
    assert bound.gpu_hours == pytest.approx(10 / 3600, rel=1e-5)
    assert bound.prices[NO_TYPE].at(5.0) == pytest.approx(1 / 10)  # one GPU-second more meets a tenth of a job
    assert bound.prices[NO_TYPE].at(-1.0) == bound.prices[NO_TYPE].at(10.0) == 0.0


def test_a_job_may_mix_numbers_of_gpus() -> None:
    """11 iterations in 10 s: 5 s on one GPU and 5 s on two, 15 GPU-seconds.

    On two GPUs, 20 / 15; if a part of a job were cheaper than its share of the whole, 20 / 11 at the speed of one GPU.
    """
    jobs = (job("a", 11, 0, 10, POOR), job("b", 11, 0, 10, POOR))
    roomy = clairvoyant_bound(of(*jobs), {NO_TYPE: 3}, FREE)
    assert roomy.jobs_met == pytest.approx(2.0)
    assert roomy.gpu_hours == pytest.approx(30 / 3600, rel=1e-5)
    assert clairvoyant_bound(of(*jobs), {NO_TYPE: 2}, FREE).jobs_met == pytest.approx(20 / 15)


def test_all_met_with_the_fewest_gpu_seconds() -> None:
    """An iteration costs 1 GPU-second on one GPU, 5 on the second: the hasty job takes 5 s of it."""
    demand = FeasibleDemand.of(of(job("hasty", 11, 0, 10, POOR), job("calm", 8, 0, 20, POOR)), {NO_TYPE: 3}, FREE)
    assert least_gpu_seconds(demand, Grid.of(demand), np.array([3]), np.ones(2)) == pytest.approx(15 + 8)
    assert least_gpu_seconds(demand, Grid.of(demand), np.array([1]), np.ones(2)) is None


def test_levels_below_the_hull_are_not_needed() -> None:
    """On two GPUs the job is slower than by taking turns between none and four."""
    curve = ScalingCurve((1, 2, 4), (1.0, 1.1, 4.0))
    demand = FeasibleDemand.of(of(job("a", 8, 0, 10, curve)), {NO_TYPE: 4}, FREE)
    assert demand.num_gpus_S.tolist() == [4.0]
    assert demand.gain_S.tolist() == pytest.approx([1 / 8])
    assert FeasibleDemand.of(of(job("a", 8, 0, 10, curve)), {NO_TYPE: 3}, FREE).num_gpus_S.tolist() == [1.0, 1.0]


def test_each_job_pays_its_cheapest_start() -> None:
    cost = ResizeCost((1, 2), (4.0, 6.0))
    assert clairvoyant_bound(of(job("a", 7, 0, 10)), {NO_TYPE: 1}, cost).jobs_met == 0.0
    window = FeasibleDemand.of(of(job("a", 6, 0, 10)), {NO_TYPE: 1}, cost)
    assert (window.opens_s_J.tolist(), window.closes_s_J.tolist()) == ([4.0], [10.0])
    both = of(job("a", 6, 0, 10), job("b", 6, 0, 16))
    assert clairvoyant_bound(both, {NO_TYPE: 1}, cost).jobs_met == pytest.approx(2.0)


def test_feasible_alone_pays_the_start_of_the_level_that_it_needs() -> None:
    cost = ResizeCost((1, 2), (0.0, 5.0))
    curve = ScalingCurve((1, 2), (1.0, 2.0))
    workload = of(job("one", 10, 0, 10, curve), job("two", 11, 0, 10, curve), job("three", 12, 0, 11, curve))
    assert feasible_alone(workload, {NO_TYPE: 2}, cost) == ("one", "three")
    assert feasible_alone(workload, {NO_TYPE: 1}, cost) == ("one",)
    assert clairvoyant_bound(workload, {NO_TYPE: 2}, cost).feasible_alone == 2


def test_only_jobs_with_a_hard_deadline_count() -> None:
    workload = of(
        job("slo", 5, 0, 10),
        job("soft", 5, 0, 10, job_class=JobClass.SOFT),
        job("best effort", 5, 0, None, job_class=JobClass.BEST_EFFORT),
    )
    assert feasible_alone(workload, {NO_TYPE: 1}, FREE) == ("slo",)
    assert clairvoyant_bound(workload, {NO_TYPE: 1}, FREE).jobs_met == pytest.approx(1.0)


def test_groups_of_jobs_that_never_meet_add_up() -> None:
    early = (job("a", 10, 0, 10), job("b", 10, 0, 10))
    late = (job("c", 10, 10, 20), job("d", 5, 12, 22), job("e", 5, 30, 40))
    bound = clairvoyant_bound(of(*early, *late), {NO_TYPE: 1}, FREE)
    assert [part.job_ids for part in FeasibleDemand.of(of(*early, *late), {NO_TYPE: 1}, FREE).components()] == [
        ("a", "b"),
        ("c", "d"),
        ("e",),
    ]
    assert bound.jobs_met == pytest.approx(1 + (5 / 8 + 1) + 1)  # c: 2 s at 5 / 8, then 8 s less the 3 of d
    assert bound.met_by_job["e"] == pytest.approx(1.0)
    assert bound.prices[NO_TYPE].at(25.0) == 0.0
    assert list(bound.prices[NO_TYPE].starts_s_B) == sorted(set(bound.prices[NO_TYPE].starts_s_B))


def test_nothing_to_do_and_nothing_to_do_it_with() -> None:
    empty = clairvoyant_bound(of(), {NO_TYPE: 8}, FREE)
    assert (empty.jobs_met, empty.feasible_alone, empty.exact, empty.prices[NO_TYPE].at(0.0)) == (0.0, 0, True, 0.0)
    assert clairvoyant_bound(of(job("a", 1, 0, 10)), {NO_TYPE: 0}, FREE).jobs_met == 0.0


def test_merged_intervals_bound_from_above() -> None:
    """In one interval of 20 s, the two jobs of the first half may use the second half's capacity, to 10 s each."""
    workload = of(job("a", 10, 0, 10), job("b", 10, 0, 10), job("c", 1, 9, 20))
    exact = clairvoyant_bound(workload, {NO_TYPE: 1}, FREE)
    merged = clairvoyant_bound(workload, {NO_TYPE: 1}, FREE, max_intervals=1)
    assert exact.jobs_met == pytest.approx(2.0)
    assert merged.jobs_met == pytest.approx(20 / 10 + (1 - 1 / 10), abs=0.11)
    assert (merged.intervals, merged.exact) == (1, False)


def test_jobs_buy_where_time_is_cheap() -> None:
    """6 iterations: 4 s of the cheap half on one GPU, then its second GPU (0.2 a GPU-second), or the costly half."""
    workload = of(job("a", 6, 0, 10, POOR), job("b", 1, 0, 4), job("c", 1, 4, 10))
    demand = FeasibleDemand.of(workload, {NO_TYPE: 2}, FREE)
    bought = price_ascent.answer(demand, Grid.of(demand), np.array([2]), np.array([[0.01, 0.1]]))
    costs = [4 * 0.01 + 4 * 0.01 + 1.2 * 0.1, 0.01, 0.1]
    assert bought.met_J.tolist() == [1.0, 1.0, 1.0]
    assert bought.gpu_seconds_GI[0].tolist() == pytest.approx([4 + 4 + 1, 1.2 + 1], rel=1e-5)  # less what is forgiven
    assert bought.dual_value == pytest.approx(2 * (4 * 0.01 + 6 * 0.1) + sum(1 - cost for cost in costs))


def test_ascending_prices_close_in_on_the_optimum() -> None:
    jobs = [job(f"job-{at}", 5 + 3 * (at % 4), 7 * at, 7 * at + 25, POOR) for at in range(12)]
    demand = FeasibleDemand.of(of(*jobs), {NO_TYPE: 2}, FREE)
    grid = Grid.of(demand)
    optimum = solve(demand, grid, np.array([2]))
    assert optimum is not None
    best, mean = price_ascent.ascend(demand, grid, np.array([2]), 600)
    assert optimum.met_J.sum() - 1e-9 <= best.dual_value <= optimum.met_J.sum() * 1.001
    assert mean.met_J.sum() == pytest.approx(optimum.met_J.sum(), rel=0.02)


FAST, SLOW, ONE_HALF = (ScalingCurve((1,), (rate,)) for rate in (2.0, 1.0, 0.5))


def typed(job_id: str, iterations: int, submitted_at_s: float, deadline_s: float, **curves: ScalingCurve) -> TraceJob:
    made = job(job_id, iterations, submitted_at_s, deadline_s, next(iter(curves.values())))
    return replace(made, measured_by_type=curves)


def test_a_second_type_adds_what_it_can_do() -> None:
    """30 iterations in 10 s, for jobs of 20: a GPU-second of the fast type is worth two of the slow one."""
    jobs = of(typed("a", 20, 0, 10, fast=FAST, slow=SLOW), typed("b", 20, 0, 10, fast=FAST, slow=SLOW))
    bound = clairvoyant_bound(jobs, {"fast": 1, "slow": 1}, FREE)
    assert bound.jobs_met == pytest.approx(30 / 20)
    assert bound.exact
    assert bound.prices["fast"].at(5.0) == pytest.approx(2 / 20)
    assert bound.prices["slow"].at(5.0) == pytest.approx(1 / 20)


def test_types_together_may_meet_what_none_meets_alone() -> None:
    jobs = of(typed("a", 30, 0, 10, fast=FAST, slow=SLOW))
    assert clairvoyant_bound(jobs, {"fast": 1, "slow": 1}, FREE).jobs_met == pytest.approx(1.0)
    assert clairvoyant_bound(jobs, {"fast": 1}, FREE).feasible_alone == 0


def test_a_job_that_does_not_run_on_a_type_gets_nothing_there() -> None:
    both = typed("a", 10, 0, 10, fast=FAST, slow=SLOW)
    only_fast = typed("b", 20, 0, 10, fast=FAST)
    assert clairvoyant_bound(of(both, only_fast), {"fast": 1, "slow": 1}, FREE).jobs_met == pytest.approx(2.0)
    assert clairvoyant_bound(of(only_fast), {"slow": 8}, FREE).jobs_met == 0.0


def test_prices_of_types_ascend_to_the_optimum() -> None:
    jobs = [
        typed(f"job-{at}", 5 + 3 * (at % 4), 7 * at, 7 * at + 15, fast=POOR, slow=SLOW if at % 2 else ONE_HALF)
        for at in range(12)
    ]
    num_gpus_by_type = {"fast": 2, "slow": 1}
    demand, num_gpus_G = FeasibleDemand.of(of(*jobs), num_gpus_by_type, FREE), np.array([2, 1])
    grid = Grid.of(demand)
    optimum = solve(demand, grid, num_gpus_G)
    assert optimum is not None
    best, mean = price_ascent.ascend(demand, grid, num_gpus_G, 600)
    assert optimum.met_J.sum() - 1e-9 <= best.dual_value <= optimum.met_J.sum() * 1.001
    assert mean.met_J.sum() == pytest.approx(optimum.met_J.sum(), rel=0.02)
