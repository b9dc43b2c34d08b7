from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.heterogeneous.rounds import (
    ROUND_S,
    ActiveJob,
    Recipe,
    Shares,
    arriving_jobs,
    gavel_throughputs,
    simulate_rounds,
)
from benchmarks.heterogeneous.share_programs import deadline_policy, las_shares
from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.workload import TypedPool, typed_pool
from tests.support.typed_jobs import table, typed_job

POOL = typed_pool("1xfast,2xslow")
TABLE = table(net={"fast": {1: 4.0}, "slow": {1: 1.0, 2: 2.0}})
PAPER_POOL = typed_pool("4xV100,8xP100,16xK80")


def test_a_job_runs_from_the_next_round_at_the_throughput_of_what_it_holds() -> None:
    outcome = simulate_rounds([typed_job("a", "net", 4.0 * 500, arrived_at_s=100.0)], TABLE, POOL, las_shares)
    (done,) = outcome.finished
    assert done.finished_at_s == pytest.approx(ROUND_S + 500.0)
    assert done.completion_s == pytest.approx(ROUND_S + 400.0)
    assert outcome.mean_completion_s == outcome.makespan_s == done.completion_s
    assert outcome.gpu_hours == pytest.approx({"fast": 500 / 3600, "slow": 0.0})


def test_shorter_rounds_shorten_the_wait() -> None:
    job = typed_job("a", "net", 4.0 * 500, arrived_at_s=100.0)
    outcome = simulate_rounds([job], TABLE, POOL, las_shares, round_s=30.0)
    assert outcome.mean_completion_s == pytest.approx(20.0 + 500.0)


def test_a_mix_of_all_types_is_faster_by_their_sum() -> None:
    job = typed_job("a", "net", 5.4 * 500)
    alone = simulate_rounds([job], TABLE, POOL, las_shares)
    mixed = simulate_rounds([job], TABLE, POOL, las_shares, mix_efficiency=0.9)
    assert alone.mean_completion_s == pytest.approx(5.4 / 4.0 * 500)
    assert mixed.mean_completion_s == pytest.approx(500.0)
    assert mixed.gpu_hours == pytest.approx({"fast": 500 / 3600, "slow": 1000 / 3600})


def test_two_equal_jobs_finish_within_one_round_of_each_other() -> None:
    jobs = [typed_job(name, "net", 4.0 * 10 * ROUND_S) for name in "ab"]
    first, second = simulate_rounds(jobs, TABLE, POOL, las_shares).finished
    assert abs(first.finished_at_s - second.finished_at_s) <= ROUND_S
    assert max(first.finished_at_s, second.finished_at_s) == pytest.approx(80 * ROUND_S / 6, rel=0.1)


def test_the_pool_is_idle_until_a_late_job() -> None:
    jobs = [typed_job("a", "net", 4.0), typed_job("b", "net", 4.0, arrived_at_s=50 * ROUND_S + 1.0)]
    assert [done.finished_at_s for done in simulate_rounds(jobs, TABLE, POOL, las_shares).finished] == [
        1.0,
        51 * ROUND_S + 1.0,
    ]


def test_a_policy_is_asked_again_only_when_the_active_jobs_change() -> None:
    asked_at_s = list[float]()

    def recorded(jobs: Sequence[ActiveJob], pool: TypedPool, now_s: float) -> Shares:
        asked_at_s.append(now_s)
        return [np.ones(len(job.configurations.throughput_C)) for job in jobs]

    jobs = [typed_job("a", "net", 4.0 * 5 * ROUND_S), typed_job("b", "net", 1.0, arrived_at_s=2 * ROUND_S)]
    simulate_rounds(jobs, TABLE, POOL, recorded)
    assert asked_at_s == [0.0, 2 * ROUND_S, 3 * ROUND_S]  # a arrives, b arrives, b has finished


def test_a_seed_gives_the_same_outcome_twice() -> None:
    rates = gavel_throughputs()
    jobs = arriving_jobs(Recipe(num_jobs=40, jobs_per_hour=12, deadline_factors=(0.5, 2.0)), rates, seed=5)
    for policy in (las_shares, deadline_policy({"V100": 2.48, "P100": 1.46, "K80": 0.45})):
        first, second = (simulate_rounds(jobs, rates, PAPER_POOL, policy, mix_efficiency=0.736) for _ in range(2))
        assert first == second
        assert [done.job.job_id for done in first.finished] == [job.job_id for job in jobs]
        assert 0.0 < first.deadlines_met < 1.0


def test_mixed_types_shorten_completion_at_a_low_load() -> None:
    rates = gavel_throughputs()
    jobs = arriving_jobs(Recipe(num_jobs=40, jobs_per_hour=2), rates, seed=0)
    one_type = simulate_rounds(jobs, rates, PAPER_POOL, las_shares)
    mixed = simulate_rounds(jobs, rates, PAPER_POOL, las_shares, mix_efficiency=0.736)
    assert mixed.mean_completion_s < 0.9 * one_type.mean_completion_s
    by_class = mixed.mean_completion_s_by_class
    assert by_class["small"] < by_class["medium"] < by_class["large"]


def test_a_model_or_a_type_that_the_table_lacks_is_named() -> None:
    with pytest.raises(BadSettings, match=r"table.csv has no model 'gpt'; it has net"):
        simulate_rounds([typed_job("a", "gpt", 1.0)], TABLE, POOL, las_shares)
    with pytest.raises(BadSettings, match=r"table.csv has no GPU type 'A100'; it has fast, slow"):
        simulate_rounds([typed_job("a", "net", 1.0)], TABLE, typed_pool("1xA100"), las_shares)
