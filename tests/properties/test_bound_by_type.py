"""The clairvoyant bound on pools of several GPU types: what proves it, and what must never exceed it."""

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.bound import clairvoyant_bound, hindsight_schedule, price_ascent
from elasticflow.simulator.bound.clairvoyant_bound import solve
from elasticflow.simulator.bound.feasible_demand import FeasibleDemand, Grid
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import ClusterShape, TypedPool, Workload
from tests.support.example_specs import examples
from tests.support.resize_schedules import problems
from tests.support.workload_strategies import COSTS, num_gpus_by_type, typed_workloads, workloads

CLOSE = 1e-5
SEEDS = st.integers(0, 2**32 - 1)


@examples(60)
@given(typed_workloads(), num_gpus_by_type(), COSTS, SEEDS)
def test_whatever_the_prices_they_prove_a_bound(
    workload: Workload, num_gpus: Mapping[str, int], cost: ResizeCost, seed: int
) -> None:
    demand, num_gpus_G = FeasibleDemand.of(workload, num_gpus, cost), np.array(list(num_gpus.values()))
    if not demand.num_jobs:
        return
    grid = Grid.of(demand)
    optimum = solve(demand, grid, num_gpus_G)
    assert optimum is not None
    chance = np.random.default_rng(seed)
    shape = len(num_gpus_G), len(grid.lengths_s_I)
    prices = chance.uniform(0, 0.02, shape) * (chance.random(shape) < 0.8)
    assert price_ascent.answer(demand, grid, num_gpus_G, prices).dual_value >= optimum.met_J.sum() - CLOSE
    best, mean = price_ascent.ascend(demand, grid, num_gpus_G, 200)
    assert optimum.met_J.sum() - CLOSE <= best.dual_value <= demand.num_jobs + CLOSE
    assert np.all((mean.met_J >= 0) & (mean.met_J <= 1))


@examples(60)
@given(typed_workloads(max_jobs=4), num_gpus_by_type(), COSTS, SEEDS)
def test_what_a_job_buys_is_its_cheapest(
    workload: Workload, num_gpus: Mapping[str, int], cost: ResizeCost, seed: int
) -> None:
    """Against a linear program for each job: alone at a high price for not being met."""
    demand, num_gpus_G = FeasibleDemand.of(workload, num_gpus, cost), np.array(list(num_gpus.values()))
    if not demand.num_jobs:
        return
    grid = Grid.of(demand)
    prices = np.random.default_rng(seed).uniform(0, 0.02, (len(num_gpus_G), len(grid.lengths_s_I)))
    bought = price_ascent.answer(demand, grid, num_gpus_G, prices)
    surplus = bought.dual_value - float((prices @ grid.lengths_s_I) @ num_gpus_G)
    assert surplus == pytest.approx(sum(_surplus(part, prices, grid) for part in _each(demand)), abs=CLOSE)


def _each(demand: FeasibleDemand) -> list[FeasibleDemand]:
    return [demand.only(np.array([job])) for job in range(demand.num_jobs)]


def _surplus(alone: FeasibleDemand, prices: np.ndarray, grid: Grid) -> float:
    costs, gains, limits = list[float](), list[float](), list[float]()
    for interval in range(len(grid.lengths_s_I)):
        start_s = max(grid.instants_s_B[interval], alone.opens_s_J[0])
        seconds = min(grid.instants_s_B[interval + 1], alone.closes_s_J[0]) - start_s
        for gpu_type, num_gpus, gain in zip(alone.type_S, alone.num_gpus_S, alone.gain_S, strict=True):
            costs.append(prices[gpu_type, interval])
            gains.append(gain)
            limits.append(max(seconds, 0.0) * num_gpus)
    result = linprog(costs, A_eq=[gains], b_eq=[1.0], bounds=[(0.0, limit) for limit in limits])
    return max(1.0 - result.fun, 0.0) if result.status == 0 else 0.0


@examples(30)
@given(typed_workloads(max_jobs=4), num_gpus_by_type(), COSTS)
def test_no_division_of_the_jobs_over_the_types_exceeds_the_bound(
    workload: Workload, num_gpus: Mapping[str, int], cost: ResizeCost
) -> None:
    """Each job on one type, in every way, with hindsight."""
    whole_jobs_met = clairvoyant_bound(workload, num_gpus, cost).whole_jobs_met
    for types in product(num_gpus, repeat=len(workload.jobs)):
        met = 0
        for gpu_type in set(types):
            jobs = (job.on_type(name) for job, name in zip(workload.jobs, types, strict=True) if name == gpu_type)
            part = Workload.of("part", (job for job in jobs if job is not None))
            met += hindsight_schedule(part, {gpu_type: num_gpus[gpu_type]}, cost, moves=10).met
        assert met <= whole_jobs_met


@examples(60)
@given(typed_workloads(), num_gpus_by_type(), COSTS, SEEDS)
def test_schedules_with_hindsight_are_kept_on_each_type_and_stay_below_the_bound(
    workload: Workload, num_gpus: Mapping[str, int], cost: ResizeCost, seed: int
) -> None:
    made = hindsight_schedule(workload, num_gpus, cost, seed, moves=30)
    assert made.met <= clairvoyant_bound(workload, num_gpus, cost).whole_jobs_met
    assert problems(made, workload, num_gpus, cost) == []


@examples(30)
@given(typed_workloads(), num_gpus_by_type(), COSTS, st.sampled_from(["first-come", "selective"]))
def test_the_services_policies_do_not_exceed_the_bound(
    workload: Workload, num_gpus: Mapping[str, int], cost: ResizeCost, admission: str
) -> None:
    cluster = ClusterShape.of_pool(TypedPool(tuple(num_gpus), tuple(num_gpus.values())), gpus_per_node=4)
    result = Simulation(workload, cluster, TrainingModel(resize_cost=cost), SimulatedPool(admission=admission)).run()
    assert result.num_late() == 0
    assert result.num_met() <= clairvoyant_bound(workload, num_gpus, cost).whole_jobs_met


@examples(30)
@given(typed_workloads(), num_gpus_by_type(), COSTS, st.integers(1, 12))
def test_gpus_of_one_more_type_never_lower_the_bound(
    workload: Workload, num_gpus: Mapping[str, int], cost: ResizeCost, added: int
) -> None:
    one_more = {**num_gpus, "K80": num_gpus.get("K80", 0) + added}
    before = clairvoyant_bound(workload, num_gpus, cost).jobs_met
    assert before <= clairvoyant_bound(workload, one_more, cost).jobs_met + CLOSE


@examples(30)
@given(workloads(), st.integers(1, 24), COSTS)
def test_the_name_of_the_only_type_changes_no_number(workload: Workload, num_gpus: int, cost: ResizeCost) -> None:
    unnamed, named = (clairvoyant_bound(workload, {name: num_gpus}, cost) for name in (NO_TYPE, "V100"))
    assert (unnamed.jobs_met, unnamed.gpu_hours, unnamed.met_by_job) == (
        named.jobs_met,
        named.gpu_hours,
        named.met_by_job,
    )
    assert unnamed.prices[NO_TYPE] == named.prices["V100"]
