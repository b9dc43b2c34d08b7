"""Rounds of jobs on several GPU types: throughputs, configurations, arrivals, placement, runs, shares for deadlines."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.heterogeneous.rounds import (
    ROUND_S,
    SIZE_CLASSES,
    WAITING,
    ActiveJob,
    Configurations,
    Recipe,
    Shares,
    arriving_jobs,
    configurations,
    gavel_throughputs,
    place_round,
    simulate_rounds,
)
from benchmarks.heterogeneous.share_programs import deadline_policy, las_shares
from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.workload import TypedPool, typed_pool
from tests.support.typed_jobs import active_job, table, typed_job

# --- throughputs ---------------------------------------------------------------------------------------


def test_rates_are_known_by_model_type_and_number_of_gpus() -> None:
    rates = table(gpt={"V100": {1: 2.0, 2: 3.5}, "K80": {2: 0.5}}, bert={"V100": {1: 7.0}})
    assert (rates.models, rates.gpu_types) == (("bert", "gpt"), ("K80", "V100"))
    assert rates.throughputs("gpt", "V100") == {1: 2.0, 2: 3.5}
    assert rates.throughputs("bert", "K80") == {}
    assert rates.throughput_per_gpu("gpt", "K80") == 0.25
    assert rates.throughput_per_gpu("bert", "K80") == 0.0


def test_an_unknown_model_or_type_is_named_with_the_known_ones() -> None:
    rates = gavel_throughputs()
    with pytest.raises(
        BadSettings, match=r"throughputs_by_type has no model 'gpt'; it has resnet18_batch128, resnet50_batch128"
    ):
        rates.throughputs("gpt", "V100")
    with pytest.raises(BadSettings, match=r"throughputs_by_type has no GPU type 'A100'; it has K80, P100, V100"):
        rates.throughputs("resnet50_batch64", "A100")


def test_the_bundled_table_has_each_model_on_each_type() -> None:
    rates = gavel_throughputs()
    assert rates.gpu_types == ("K80", "P100", "V100")
    for model in rates.models:
        assert rates.throughput_per_gpu(model, "K80") < rates.throughput_per_gpu(model, "P100")
        assert rates.throughput_per_gpu(model, "P100") < rates.throughput_per_gpu(model, "V100")


# --- configurations ------------------------------------------------------------------------------------


SIX = typed_pool("2xfast,4xslow")
NETS = table(net={"fast": {1: 4.0, 2: 8.0, 4: 16.0}, "slow": {1: 1.0, 2: 2.0, 4: 4.0}}, large={"fast": {2: 1.0}})


def as_mapping(choices: Configurations) -> dict[tuple[int, ...], float]:
    return dict(zip(map(tuple, choices.num_gpus_CI.tolist()), choices.throughput_C.tolist(), strict=True))


def test_without_mixing_a_job_holds_gpus_of_one_type_that_the_pool_has() -> None:
    assert as_mapping(configurations(NETS, SIX, "net", (1, 2, 4), None)) == {
        (1, 0): 4.0,
        (2, 0): 8.0,
        (0, 1): 1.0,
        (0, 2): 2.0,
        (0, 4): 4.0,
    }


def test_a_mix_has_its_part_of_the_sum_and_is_left_out_where_fewer_gpus_are_as_fast() -> None:
    assert as_mapping(configurations(NETS, SIX, "net", (2, 4), 0.8)) == {
        (2, 0): 8.0,
        (0, 2): 2.0,
        (0, 4): 4.0,
        (2, 4): pytest.approx(0.8 * 12.0),  # (2, 2) would have 0.8 * 10, which two fast GPUs have alone
    }


def test_an_equal_share_is_the_throughput_of_one_gpu_spread_over_the_pool() -> None:
    choices = configurations(NETS, SIX, "net", (1, 2), None)
    assert choices.equal_throughput == pytest.approx((2 * 4.0 + 4 * 1.0) / 6)
    assert choices.normalized_C.max() == pytest.approx(8.0 / 2.0)
    assert configurations(NETS, SIX, "large", (2,), None).equal_throughput == pytest.approx(2 * 0.5 / 6)


def test_a_job_that_runs_nowhere_is_rejected() -> None:
    with pytest.raises(BadSettings, match=r"model 'large' does not run on 1 or 4 GPUs of one type of the pool 2xfast"):
        configurations(NETS, SIX, "large", (1, 4), 0.9)
    with pytest.raises(BadSettings, match=r"table.csv has no GPU type 'A100'; it has fast, slow"):
        configurations(NETS, typed_pool("1xA100"), "net", (1,), None)


# --- arrivals ------------------------------------------------------------------------------------------


GAVEL = gavel_throughputs()


def test_a_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    recipe = Recipe(num_jobs=50, jobs_per_hour=8.0, deadline_factors=(1.0, 2.0))
    assert arriving_jobs(recipe, GAVEL, seed=3) == arriving_jobs(recipe, GAVEL, seed=3)
    assert arriving_jobs(recipe, GAVEL, seed=3) != arriving_jobs(recipe, GAVEL, seed=4)


def test_jobs_follow_the_recipe() -> None:
    recipe = Recipe(
        num_jobs=4000,
        jobs_per_hour=8.0,
        gpu_minutes=(10.0, 1000.0),
        level_weights={(1,): 3.0, (2, 4): 1.0},
        deadline_factors=(1.0, 2.0),
    )
    jobs = arriving_jobs(recipe, GAVEL, seed=0)
    arrived_s = np.array([job.arrived_at_s for job in jobs])
    gpu_s = np.array([job.num_iterations / GAVEL.throughput_per_gpu(job.model, "V100") for job in jobs])
    factors = (np.array([job.deadline_s for job in jobs]) - arrived_s) / gpu_s
    assert np.diff(arrived_s).min() > 0
    assert abs(np.diff(arrived_s).mean() - 450.0) < 30.0
    assert (gpu_s.min() >= 599.0, gpu_s.max() <= 60_001.0) == (True, True)
    assert (factors.min() >= 0.999, factors.max() <= 2.001) == (True, True)
    assert abs(np.mean([job.levels == (1,) for job in jobs]) - 0.75) < 0.03
    assert {job.model for job in jobs} == set(GAVEL.models)
    limits_s = dict[str, float](zip(SIZE_CLASSES, 600.0 * 100 ** (np.arange(1, 4) / 3), strict=True))
    assert all(size <= limits_s[job.size_class] * 1.001 for job, size in zip(jobs, gpu_s, strict=True))


def test_jobs_have_no_deadlines_unless_the_recipe_gives_them() -> None:
    assert all(np.isinf(job.deadline_s) for job in arriving_jobs(Recipe(num_jobs=9, jobs_per_hour=1), GAVEL, seed=0))


# --- placement -----------------------------------------------------------------------------------------


POOL = typed_pool("1xfast,2xslow")
FAST, SLOW, TWO_SLOW, ALL = (1, 0), (0, 1), (0, 2), (1, 2)


def with_rounds(job: ActiveJob, *received_C: int) -> ActiveJob:
    job.received_rounds_C = np.array(received_C, float)
    job.num_rounds = 10
    return job


def test_the_share_that_received_the_smallest_part_of_its_rounds_is_first() -> None:
    served = with_rounds(active_job([FAST], [4.0]), 9)
    behind = with_rounds(active_job([FAST], [4.0]), 2)
    shares = [np.array([0.6]), np.array([0.4])]
    assert place_round([served, behind], shares, POOL) == [WAITING, 0]
    behind.received_rounds_C[0] = 8
    assert place_round([served, behind], shares, POOL) == [0, WAITING]


def test_a_share_that_was_never_served_is_first() -> None:
    served = with_rounds(active_job([FAST], [4.0]), 1)
    new = active_job([FAST], [4.0])
    assert place_round([served, new], [np.array([0.9]), np.array([0.1])], POOL) == [WAITING, 0]


def test_a_job_has_one_configuration_in_a_round() -> None:
    job = active_job([FAST, TWO_SLOW], [4.0, 2.0])
    assert place_round([job], [np.array([0.3, 0.7])], POOL) == [
        0
    ]  # two slow GPUs by its share, then the fast one is left


def test_jobs_without_a_share_take_what_is_left_on_the_fewest_gpus() -> None:
    placed_first = active_job([FAST], [4.0])
    without = [active_job([SLOW, TWO_SLOW], [1.0, 2.0]) for _ in range(2)]
    shares = [np.array([1.0]), np.zeros(2), np.zeros(2)]
    assert place_round([placed_first, *without], shares, POOL) == [0, 0, 0]


def test_a_job_grows_to_the_fastest_configuration_that_others_leave() -> None:
    job = active_job([SLOW, TWO_SLOW, ALL], [1.0, 2.0, 5.0])
    assert place_round([job], [np.array([1.0, 0.0, 0.0])], POOL) == [2]
    other = active_job([FAST], [4.0])
    assert place_round([job, other], [np.array([1.0, 0.0, 0.0]), np.array([1.0])], POOL) == [1, 0]


def test_of_two_jobs_the_one_with_less_attained_service_grows() -> None:
    jobs = [active_job([SLOW, ALL], [1.0, 5.0]), active_job([SLOW, ALL], [1.0, 5.0])]
    pool = typed_pool("1xfast,3xslow")
    shares = [np.array([1.0, 0.0])] * 2
    assert place_round(jobs, shares, pool) == [1, 0]
    jobs[0].left_iterations = 50.0
    assert place_round(jobs, shares, pool) == [0, 1]


# --- rounds --------------------------------------------------------------------------------------------


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


# --- shares for deadlines ------------------------------------------------------------------------------


ONE_AND_ONE = typed_pool("1xfast,1xslow")
policy = deadline_policy({"fast": 5.0, "slow": 1.0})


def test_without_deadlines_each_gpu_goes_where_it_is_worth_its_price() -> None:
    (share_C,) = policy([active_job([FAST, SLOW], [4.0, 1.0])], ONE_AND_ONE, 0.0)
    assert share_C == pytest.approx([0.0, 1.0])  # 4 / 5 of an iteration for the price, against 1


def test_a_deadline_takes_as_much_of_the_fast_gpu_as_its_pace_needs() -> None:
    job = active_job([FAST, SLOW], [4.0, 1.0], left_iterations=100.0, deadline_s=150.0)
    (share_C,) = policy([job], ONE_AND_ONE, 110.0)  # 2.5 iterations/s
    assert share_C == pytest.approx([0.5, 0.5])


def test_where_not_all_deadlines_can_be_met_the_shortfall_is_the_least() -> None:
    jobs = [active_job([FAST], [4.0], left_iterations=100.0, deadline_s=40.0) for _ in range(2)]  # 2.5 of 4 each
    shares = policy(jobs, ONE_AND_ONE, 0.0)
    assert sum(float(share_C[0]) for share_C in shares) == pytest.approx(1.0)
    assert max(float(share_C[0]) for share_C in shares) >= 0.5


@pytest.mark.parametrize("now_s", [16.0, 40.0, 60.0])
def test_a_deadline_that_is_past_or_out_of_reach_takes_nothing_from_others(now_s: float) -> None:
    lost = active_job([SLOW], [4.0], left_iterations=100.0, deadline_s=40.0)  # at 16 s it needs 4.2 iterations/s
    feasible = active_job([(0, 2)], [4.0], left_iterations=100.0, deadline_s=now_s + 25.0)  # both GPUs all the time
    lost_C, feasible_C = policy([lost, feasible], typed_pool("1xfast,2xslow"), now_s)
    assert np.concatenate([lost_C, feasible_C]) == pytest.approx([0.0, 1.0])


def test_a_type_without_a_price_is_named() -> None:
    with pytest.raises(BadSettings, match=r"GPU type 'K80' has no price; give one for each type of the pool 1xK80"):
        policy([active_job([(1,)], [1.0])], typed_pool("1xK80"), 0.0)
