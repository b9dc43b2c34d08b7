"""Shares of Gavel's linear programs, over odd jobs and pools: optimal, possible, fair."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from benchmarks.heterogeneous.rounds import (
    WAITING,
    ActiveJob,
    Policy,
    Shares,
    configurations,
    place_round,
    simulate_rounds,
)
from benchmarks.heterogeneous.share_programs import MEAN_WEIGHT, deadline_policy, las_shares
from elasticflow.simulator.workload.workload import TypedPool, typed_pool
from tests.support.example_specs import examples
from tests.support.typed_jobs import active_job, table, typed_job

CLOSE = 1e-6
PRICES = {"a": 3.0, "b": 1.0, "c": 0.5}
POLICIES: list[Policy] = [las_shares, deadline_policy(PRICES)]
throughputs = st.integers(1, 64).map(lambda number: number / 4)


@st.composite
def problems(draw: st.DrawFn, max_jobs: int = 6) -> tuple[list[ActiveJob], TypedPool]:
    """Jobs of up to three models on up to three types, some with deadlines."""
    num_types = draw(st.integers(1, 3))
    pool = TypedPool(tuple("abc"[:num_types]), tuple(draw(st.integers(1, 4)) for _ in range(num_types)))
    models = {
        f"m{number}": {name: {1: draw(throughputs), 2: draw(throughputs)} for name in pool.gpu_types}
        for number in range(draw(st.integers(1, 3)))
    }
    efficiency = draw(st.sampled_from([None, 0.75, 1.0]))
    jobs = list[ActiveJob]()
    for _ in range(draw(st.integers(1, max_jobs))):
        choices = configurations(table(**models), pool, draw(st.sampled_from(sorted(models))), (1, 2), efficiency)
        deadline_s = draw(st.sampled_from([10.0, 100.0, np.inf]))
        job = active_job(choices.num_gpus_CI.tolist(), choices.throughput_C.tolist(), deadline_s=deadline_s)
        jobs.append(ActiveJob(job.job, choices, 100.0))
    return jobs, pool


def normalized_throughputs(jobs: list[ActiveJob], shares: Shares) -> list[float]:
    return [float(job.configurations.normalized_C @ share_C) for job, share_C in zip(jobs, shares, strict=True)]


@pytest.mark.parametrize("policy", POLICIES)
@examples(60)
@given(problem=problems())
def test_no_job_has_more_than_all_of_the_time_and_no_type_more_gpus_than_the_pool(
    policy: Policy, problem: tuple[list[ActiveJob], TypedPool]
) -> None:
    jobs, pool = problem
    shares = policy(jobs, pool, 0.0)
    held_I = sum(share_C @ job.configurations.num_gpus_CI for job, share_C in zip(jobs, shares, strict=True))
    assert (held_I <= pool.num_gpus_I + CLOSE).all()
    assert all(share_C.min() >= 0 and share_C.sum() <= 1 + CLOSE for share_C in shares)


@examples(60)
@given(problems(), st.data())
def test_every_round_respects_the_gpus_of_the_pool_and_leaves_no_job_waiting_that_fits(
    problem: tuple[list[ActiveJob], TypedPool], data: st.DataObject
) -> None:
    jobs, pool = problem
    for job in jobs:
        job.num_rounds = 5
        job.received_rounds_C[:] = [data.draw(st.integers(0, 5)) for _ in job.received_rounds_C]
    placed = place_round(jobs, las_shares(jobs, pool, 0.0), pool)
    free_I = pool.num_gpus_I
    for job, configuration in zip(jobs, placed, strict=True):
        if configuration != WAITING:
            free_I -= job.configurations.num_gpus_CI[configuration]
    assert free_I.min() >= 0
    for job, configuration in zip(jobs, placed, strict=True):
        assert configuration != WAITING or not (job.configurations.num_gpus_CI <= free_I).all(axis=1).any()


@examples(60)
@given(problems(max_jobs=1), st.integers(2, 5))
def test_equal_jobs_get_equal_shares(problem: tuple[list[ActiveJob], TypedPool], number: int) -> None:
    jobs, pool = problem
    done = normalized_throughputs(jobs * number, las_shares(jobs * number, pool, 0.0))
    assert max(done) - min(done) <= CLOSE * max(done) + 10 * MEAN_WEIGHT


@examples(40)
@given(problems(max_jobs=2))
def test_the_least_normalized_throughput_is_that_of_the_best_vertex(
    problem: tuple[list[ActiveJob], TypedPool],
) -> None:
    jobs, pool = problem
    jobs = [with_first_configurations(job, 3) for job in jobs]
    done = normalized_throughputs(jobs, las_shares(jobs, pool, 0.0))
    best = best_least_throughput(jobs, pool)
    assert min(done) <= best + CLOSE * best
    assert min(done) >= best * (1 - CLOSE) - MEAN_WEIGHT * sum(job.configurations.normalized_C.max() for job in jobs)


def with_first_configurations(job: ActiveJob, most: int) -> ActiveJob:
    """So that few variables are left."""
    choices = job.configurations
    return active_job(
        choices.num_gpus_CI[:most].tolist(),
        choices.throughput_C[:most].tolist(),
        equal_throughput=choices.equal_throughput,
    )


def best_least_throughput(jobs: list[ActiveJob], pool: TypedPool) -> float:
    """All vertices of the polytope of shares and least throughput, by solving all square systems of its rows."""
    sizes = [len(job.configurations.throughput_C) for job in jobs]
    num_shares, starts = sum(sizes), np.cumsum([0, *sizes])
    rows = [np.append(-row, 0.0) for row in np.eye(num_shares)]
    bounds = [0.0] * num_shares
    for start, job in zip(starts, jobs, strict=False):
        own = np.arange(start, start + len(job.configurations.throughput_C))
        rows.append(placed_row(num_shares, own, 1.0, 0.0))
        rows.append(placed_row(num_shares, own, -job.configurations.normalized_C, 1.0))
        bounds += [1.0, 0.0]
    rows += list(np.vstack([*(job.configurations.num_gpus_CI for job in jobs), np.zeros(len(pool.num_gpus))]).T)
    matrix, bound = np.array(rows), np.array(bounds + list(pool.num_gpus), float)
    best = 0.0
    for chosen in map(list, combinations(range(len(matrix)), num_shares + 1)):
        if abs(np.linalg.det(matrix[chosen])) > 1e-9:
            vertex = np.linalg.solve(matrix[chosen], bound[chosen])
            if (matrix @ vertex <= bound + 1e-9).all():
                best = max(best, float(vertex[-1]))
    return best


def placed_row(num_shares: int, own: NDArray[np.intp], values: ArrayLike, last: float) -> NDArray[np.float64]:
    row = np.zeros(num_shares + 1)
    row[own], row[-1] = values, last
    return row


@examples(40)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 4000)), min_size=1, max_size=8),
    st.lists(throughputs, min_size=3, max_size=3),
    st.integers(1, 6),
)
def test_on_a_pool_of_one_type_mixing_changes_nothing(
    sizes: list[tuple[int, int]], rates: list[float], num_gpus: int
) -> None:
    rows = table(net={"a": dict(zip((1, 2, 4), rates, strict=True))})
    jobs = [
        typed_job(f"job-{number}", "net", float(size), arrived_at_s=float(arrived_at_s), levels=(1, 2, 4))
        for number, (arrived_at_s, size) in enumerate(sorted((late, size) for size, late in sizes))
    ]
    pool = typed_pool(f"{num_gpus}xa")
    assert simulate_rounds(jobs, rows, pool, las_shares) == simulate_rounds(
        jobs, rows, pool, las_shares, mix_efficiency=0.5
    )
