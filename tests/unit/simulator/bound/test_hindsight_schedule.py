"""Schedules made with hindsight, and the fitting of one job, on workloads small enough to be solved by hand."""

from dataclasses import replace

import numpy as np
import pytest

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.bound import hindsight_schedule
from elasticflow.simulator.bound.hindsight_schedule import MAX_SEGMENTS, JobLevels, PricedPieces, cheapest_schedule
from elasticflow.simulator.verification.certificates import Held
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import Workload
from tests.support.resize_schedules import problems
from tests.support.trace_jobs import job

GOOD = ScalingCurve((1, 2), (1.0, 2.0))
POOR = ScalingCurve((1, 2), (1.0, 1.2))


def fitted(
    instants_s: list[float],
    free: list[float],
    price: list[float],
    iterations: float,
    curve: ScalingCurve,
    stop_s: float,
) -> tuple[list[Held], float]:
    held = np.zeros((MAX_SEGMENTS, 3))
    pieces = PricedPieces(np.array(instants_s), np.array(free), np.array(price))
    stops_s = np.full(len(curve.num_gpus_L), stop_s)
    levels = JobLevels(np.array(curve.num_gpus_L, np.float64), np.array(curve.iterations_per_s_L), stops_s)
    segments, cost = cheapest_schedule(pieces, levels, iterations, held)
    return [Held(*segment) for segment in held[:segments].tolist()], cost


def about(*segments: tuple[float, float, int]) -> list[object]:
    return [pytest.approx(segment, abs=1e-6) for segment in segments]


def test_a_job_takes_the_level_that_costs_least() -> None:
    held, cost = fitted([0.0, 20.0], [2.0], [1.0], 10, POOR, 2.0)
    assert held == about((0, 12, 1))  # 2 s of stop, 10 s of progress
    assert cost == pytest.approx(12, abs=1e-6)


def test_a_job_in_a_hurry_takes_more() -> None:
    assert fitted([0.0, 11.0], [2.0], [1.0], 10, POOR, 2.0)[0] == about((0, 2 + 10 / 1.2, 2))
    assert fitted([0.0, 10.0], [2.0], [1.0], 10, POOR, 2.0) == ([], np.inf)


def test_a_job_waits_for_cheap_time_but_not_for_less_than_a_stop_costs() -> None:
    dear_then_cheap = fitted([0.0, 10.0, 20.0], [1.0, 1.0], [5.0, 1.0], 6, POOR, 2.0)
    assert dear_then_cheap[0] == about((10, 18, 1))
    pause = [0.0, 8.0, 9.0, 20.0]  # through the costly second, which costs less than another stop
    assert fitted(pause, [1.0, 1.0, 1.0], [1.0, 1.5, 1.0], 12, POOR, 2.0)[0] == about((0, 14, 1))


def test_a_job_pays_a_stop_again_after_it_was_without_gpus() -> None:
    held, cost = fitted([0.0, 6.0, 10.0, 20.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0], 8, POOR, 2.0)
    assert held == about((0, 6, 1), (10, 16, 1))  # 4 iterations and 4
    assert cost == pytest.approx(12, abs=1e-6)


def test_hindsight_leaves_gpus_for_a_later_job() -> None:
    """First come, first served, the long job would take the only GPU: with hindsight two short ones are met."""
    jobs = [job("long", 30, 0, 40, POOR), job("b", 10, 10, 22, POOR), job("c", 10, 20, 34, POOR)]
    made = hindsight_schedule(Workload.of("by hand", jobs), {NO_TYPE: 1}, ResizeCost.flat(1.0))
    assert sorted(made.schedules) == ["b", "c"]
    assert made.met == 2
    assert made.gpu_hours == pytest.approx(22 / 3600)


def test_hindsight_leaves_the_fast_type_to_the_job_that_needs_it() -> None:
    """The patient job would cost least on the fast GPU, and the other one would be late."""
    typed = {"fast": ScalingCurve((1,), (2.0,)), "slow": ScalingCurve((1,), (1.5,))}
    jobs = [replace(job(name, 20, 0, end_s), measured_by_type=typed) for name, end_s in [("patient", 18), ("rush", 12)]]
    workload, num_gpus_by_type = Workload.of("by hand", jobs), {"fast": 1, "slow": 1}
    made = hindsight_schedule(workload, num_gpus_by_type, ResizeCost())
    assert made.gpu_types == {"patient": "slow", "rush": "fast"}
    assert problems(made, workload, num_gpus_by_type, ResizeCost()) == []


def test_hindsight_uses_only_types_on_which_the_job_runs_within_its_range() -> None:
    """The job runs on two GPUs, and the type that is twice as fast has one."""
    typed = {"fast": ScalingCurve((1, 2), (2.0, 4.0)), "slow": ScalingCurve((2,), (2.0,))}
    pair = replace(job("pair", 10, 0, 20), min_gpus=2, measured_by_type=typed)
    made = hindsight_schedule(Workload.of("by hand", [pair]), {"fast": 1, "slow": 2, "absent": 4}, ResizeCost())
    assert made.gpu_types == {"pair": "slow"}
    assert made.schedules["pair"] == tuple(about((0, 5, 2)))


def test_search_gains_jobs_and_the_same_seed_gains_the_same() -> None:
    jobs = [job(f"job-{at}", 6 + 5 * at % 7, 2 * at, 2 * at + 13 + at % 4, GOOD) for at in range(30)]
    workload, cost = Workload.of("crowded", jobs), ResizeCost.flat(1.0)
    at_first = hindsight_schedule(workload, {NO_TYPE: 2}, cost, seed=7, moves=0)
    searched = hindsight_schedule(workload, {NO_TYPE: 2}, cost, seed=7, moves=300)
    assert at_first.met < searched.met
    assert searched == hindsight_schedule(workload, {NO_TYPE: 2}, cost, seed=7, moves=300)


def test_nothing_to_schedule() -> None:
    assert hindsight_schedule(Workload.of("empty", []), {NO_TYPE: 4}, ResizeCost()).met == 0
    hopeless = Workload.of("hopeless", [job("a", 100, 0, 1, POOR)])
    assert hindsight_schedule(hopeless, {NO_TYPE: 4}, ResizeCost()).schedules == {}
