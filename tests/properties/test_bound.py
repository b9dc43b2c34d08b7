"""The clairvoyant bound, over odd workloads: what must never lower it, and what must never exceed it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.bound import (
    bound_program,
    clairvoyant_bound,
    feasible_alone,
    hindsight_schedule,
    price_ascent,
)
from elasticflow.simulator.bound.feasible_demand import Demand, Grid
from elasticflow.simulator.workload.workload import TraceJob, Workload
from tests.support.example_specs import examples
from tests.support.resize_schedules import problems
from tests.support.strategies import scaling_curves
from tests.support.trace_jobs import job

COSTS = st.sampled_from([ResizeCost(), ResizeCost.flat(4.0), ResizeCost((1, 2, 8), (4.0, 6.0, 10.0))])
CLOSE = 1e-5


@st.composite
def workloads(draw: st.DrawFn, max_jobs: int = 7) -> Workload:
    """Jobs close together in time, so that they contend."""
    jobs = list[TraceJob]()
    for number in range(draw(st.integers(1, max_jobs))):
        submitted_at_s = float(draw(st.integers(0, 60)))
        jobs.append(
            job(
                f"job-{number}",
                draw(st.integers(1, 400)),
                submitted_at_s,
                submitted_at_s + draw(st.integers(1, 80)),
                draw(scaling_curves()),
            )
        )
    return Workload.of("drawn", jobs)


@examples(60)
@given(workloads(), st.integers(1, 24), st.integers(1, 24), COSTS)
def test_more_gpus_never_lower_the_bound(workload: Workload, num_gpus: int, added: int, cost: ResizeCost) -> None:
    fewer = clairvoyant_bound(workload, num_gpus, cost)
    more = clairvoyant_bound(workload, num_gpus + added, cost)
    assert fewer.exact
    assert fewer.jobs_met <= more.jobs_met + CLOSE
    assert set(feasible_alone(workload, num_gpus, cost)) <= set(feasible_alone(workload, num_gpus + added, cost))


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
    before = clairvoyant_bound(workload, num_gpus, cost).jobs_met
    assert before <= clairvoyant_bound(Workload.of("eased", [*others, easier]), num_gpus, cost).jobs_met + CLOSE


@examples(60)
@given(workloads(), st.integers(1, 24), COSTS, st.integers(1, 8))
def test_merged_intervals_never_lower_the_bound(
    workload: Workload, num_gpus: int, cost: ResizeCost, max_intervals: int
) -> None:
    exact = clairvoyant_bound(workload, num_gpus, cost)
    merged = clairvoyant_bound(workload, num_gpus, cost, max_intervals=max_intervals)
    assert exact.jobs_met <= merged.jobs_met + CLOSE
    assert merged.jobs_met <= merged.feasible_alone + CLOSE


@examples(60)
@given(workloads(), st.integers(1, 24), COSTS, st.integers(0, 2**32 - 1))
def test_whatever_the_prices_they_prove_a_bound(workload: Workload, num_gpus: int, cost: ResizeCost, seed: int) -> None:
    demand = Demand.of(workload, num_gpus, cost)
    if not demand.num_jobs:
        return
    grid = Grid.of(demand)
    optimum = bound_program.solve(demand, grid, num_gpus)
    assert optimum is not None
    chance = np.random.default_rng(seed)
    size = len(grid.lengths_s_I)
    prices = chance.uniform(0, 0.02, size) * (chance.random(size) < 0.8)
    assert price_ascent.answer(demand, grid, num_gpus, prices).dual_value >= optimum.met_J.sum() - CLOSE
    best, mean = price_ascent.ascend(demand, grid, num_gpus, 200)
    assert optimum.met_J.sum() - CLOSE <= best.dual_value <= demand.num_jobs + CLOSE
    assert np.all((mean.met_J >= 0) & (mean.met_J <= 1))


@examples(60)
@given(workloads(), st.integers(1, 24), COSTS, st.integers(0, 2**32 - 1))
def test_schedules_with_hindsight_are_kept_to_the_last_bit_and_stay_below_the_bound(
    workload: Workload, num_gpus: int, cost: ResizeCost, seed: int
) -> None:
    made = hindsight_schedule(workload, num_gpus, cost, seed, moves=30)
    assert made.met <= clairvoyant_bound(workload, num_gpus, cost).whole_jobs_met
    assert problems(made, workload, num_gpus, cost) == []


@examples(60)
@given(workloads(max_jobs=4), st.integers(1, 24), COSTS, st.integers(0, 2**32 - 1))
def test_what_a_job_buys_is_its_cheapest(workload: Workload, num_gpus: int, cost: ResizeCost, seed: int) -> None:
    """Against a linear program for each job: alone at a high price for not being met."""
    demand = Demand.of(workload, num_gpus, cost)
    if not demand.num_jobs:
        return
    grid = Grid.of(demand)
    prices = np.random.default_rng(seed).uniform(0, 0.02, len(grid.lengths_s_I))
    bought = price_ascent.answer(demand, grid, num_gpus, prices)
    surplus = bought.dual_value - float(prices @ grid.lengths_s_I) * num_gpus
    assert surplus == pytest.approx(sum(_surplus(part, prices, grid) for part in _each(demand)), abs=CLOSE)


def _each(demand: Demand) -> list[Demand]:
    return [demand.only(np.array([job])) for job in range(demand.num_jobs)]


def _surplus(alone: Demand, prices: np.ndarray, grid: Grid) -> float:
    costs, gains, limits = list[float](), list[float](), list[float]()
    for interval, price in enumerate(prices):
        start_s = max(grid.instants_s_B[interval], alone.opens_s_J[0])
        seconds = min(grid.instants_s_B[interval + 1], alone.closes_s_J[0]) - start_s
        for num_gpus, gain in zip(alone.num_gpus_S, alone.gain_S, strict=True):
            costs.append(price)
            gains.append(gain)
            limits.append(max(seconds, 0.0) * num_gpus)
    result = linprog(costs, A_eq=[gains], b_eq=[1.0], bounds=[(0.0, limit) for limit in limits])
    return max(1.0 - result.fun, 0.0) if result.status == 0 else 0.0
