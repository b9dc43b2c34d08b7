"""Selective admission: which jobs displace more promises than they are worth, by recent demand and by what is
promised."""

import math
from collections.abc import Sequence

import pytest

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_pricing import FEWEST_SUBMISSIONS, AdmissionPricing, Submitted
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import Demand

DAY_S, NUM_GPUS = 86_400.0, 8
LINEAR = ScalingCurve((1, 2, 4, 8), (1.0, 2.0, 4.0, 8.0))


def every(gap_s: float, gpu_seconds: float, window_s: float = 600.0, until_s: float = DAY_S) -> Demand:
    demand = Demand()
    for number in range(int(until_s / gap_s)):
        demand = demand.added(number * gap_s, gpu_seconds, window_s)
    return demand


def job(gpu_seconds: float, window_s: float, now_s: float = DAY_S, job_id: str = "job") -> SchedulableJob:
    return SchedulableJob(job_id=job_id, curve=LINEAR, remaining_iterations=gpu_seconds, deadline_s=now_s + window_s)


def pricing(
    demand: Demand,
    coming: Sequence[Submitted] = (),
    promised: Sequence[SchedulableJob] = (),
    num_gpus: int = NUM_GPUS,
    now_s: float = DAY_S,
) -> AdmissionPricing:
    return AdmissionPricing(demand, coming, now_s, AdmissionPlan.build(promised, num_gpus, now_s))


def displaced(prices: AdmissionPricing, gpu_seconds: float, window_s: float) -> float:
    return prices.displaced_promises(job(gpu_seconds, window_s, now_s=prices.now_s))


CHEAP_FILL_THE_POOL = every(25.0, 250.0)  # 10 GPUs' worth


def test_without_demand_or_with_little_of_it_nothing_is_displaced() -> None:
    assert displaced(pricing(Demand()), 4000.0, 600.0) == 0.0
    assert displaced(pricing(every(3600.0, 100.0)), 2000.0, 600.0) == pytest.approx(0.0, abs=1e-9)


def test_of_a_few_submissions_nothing_is_learned() -> None:
    few = Demand()
    for _ in range(FEWEST_SUBMISSIONS - 1):
        few = few.added(DAY_S, 400.0, 600.0)
    assert not pricing(few).knows_enough
    assert pricing(few, [(400.0, 600.0)]).knows_enough, "the commands of the decision count"


def test_a_job_displaces_as_many_cheaper_ones_as_its_gpu_seconds_hold_where_they_fill_the_pool() -> None:
    full = pricing(CHEAP_FILL_THE_POOL)
    assert displaced(full, 1000.0, 600.0) == pytest.approx(4.0, rel=1e-6)
    assert full.is_overpriced(job(1000.0, 600.0))
    assert not full.is_overpriced(job(240.0, 600.0))
    assert full.price_limit_gpu_seconds(job(1000.0, 600.0)) == pytest.approx(250.0)
    assert full.price_limit_gpu_seconds(job(100.0, 600.0)) == math.inf


def test_a_larger_pool_has_space_for_both() -> None:
    assert not pricing(CHEAP_FILL_THE_POOL, num_gpus=4 * NUM_GPUS).is_overpriced(job(1000.0, 600.0))


def test_dearer_demand_yields() -> None:
    assert not pricing(every(600.0, 6000.0, 1200.0)).is_overpriced(job(3000.0, 1200.0))


def test_what_is_promised_makes_the_rest_more_expensive() -> None:
    half = every(60.0, 250.0)  # 4.2 GPUs' worth
    promised = [job(NUM_GPUS * 1000.0, 2000.0, job_id="promised")]
    assert not pricing(half).is_overpriced(job(1200.0, 1500.0))
    assert pricing(half, promised=promised).is_overpriced(job(1200.0, 1500.0))


def test_a_job_does_not_compete_with_itself_but_with_the_other_commands() -> None:
    quiet, itself = every(3600.0, 100.0), (2000.0, 600.0)
    assert not pricing(quiet, [itself]).is_overpriced(job(*itself))
    assert pricing(quiet, [itself, *[(50.0, 600.0)] * 500]).is_overpriced(job(*itself))


def test_jobs_that_come_together_lead_to_expect_more_of_them_by_the_last_deadline_of_all() -> None:
    large, small = (NUM_GPUS * 3600.0, 8 * 3600.0), (400.0, 600.0)
    first_rush = pricing(Demand(), [large, *[small] * 20])
    assert first_rush.is_overpriced(job(*large))
    assert not first_rush.is_overpriced(job(*small))
    assert not pricing(Demand(), [large, *[large] * 20]).is_overpriced(job(*large)), "none is worth more than another"


def test_the_first_affordable_deadline_is_where_the_price_allows_it() -> None:
    full = pricing(every(30.0, 150.0, until_s=2 * DAY_S), now_s=2 * DAY_S)
    for gpu_seconds in (300.0, 3000.0, 30_000.0):
        asked = job(gpu_seconds, math.inf, 0.0)
        first_s = full.first_affordable_s(asked, 2 * DAY_S + 60.0, 1.0)
        assert first_s is not None
        assert not full.is_overpriced(job(gpu_seconds, first_s, 0.0))
        assert first_s == 2 * DAY_S + 60.0 or full.is_overpriced(job(gpu_seconds, first_s - 1.0, 0.0))


@pytest.mark.parametrize("gpu_seconds", [600.0, 777.7, 1_234.5])
def test_a_job_is_not_overpriced_for_others_of_its_own_size(gpu_seconds: float) -> None:
    prices = pricing(every(gpu_seconds / 10.0, gpu_seconds))
    assert displaced(prices, gpu_seconds, 600.0) == pytest.approx(1.0)
    assert not prices.is_overpriced(job(gpu_seconds, 600.0))


def test_as_much_is_expected_of_a_pool_that_has_forgotten_its_oldest_demand() -> None:
    young, old = every(5.0, 100.0, until_s=30_000.0), every(5.0, 100.0, until_s=300_000.0)
    assert old.since_s == old.full[0][0] > 0.0
    price = [displaced(pricing(demand, now_s=now_s), 4_000.0, 600.0) for demand, now_s in ((young, 3e4), (old, 3e5))]
    assert price[1] == pytest.approx(price[0], rel=0.05)


def test_most_promises_are_displaced_where_the_expected_jobs_are_due() -> None:
    prices = pricing(CHEAP_FILL_THE_POOL)
    from_s, until_s = prices.most_displaced_within_s(job(1000.0, 600.0))
    assert until_s > DAY_S
    assert from_s < DAY_S + 2 * 600.0


# --- histories and pools that mislead -------------------------------------------------------------------


def test_a_history_of_one_instant_is_not_taken_for_a_stream() -> None:
    at_once = Demand()
    for _ in range(100):
        at_once = at_once.added(DAY_S, 250.0, 600.0)
    assert pricing(at_once).is_overpriced(job(1000.0, 600.0)), "a hundred came within the last hour"
    assert not pricing(at_once, now_s=DAY_S + 6 * 3600.0).is_overpriced(job(1000.0, 600.0, DAY_S + 6 * 3600.0))


def test_jobs_that_never_fit_do_not_move_the_price() -> None:
    huge = every(30.0, 1e9, 1e9)
    assert not pricing(huge).is_overpriced(job(4000.0, 600.0))
    assert pricing(CHEAP_FILL_THE_POOL, [(math.inf, math.inf)]).is_overpriced(job(1000.0, 600.0))


def test_tiny_jobs_move_the_price_no_further_than_the_space_that_they_need() -> None:
    tiny = every(1.0, 0.5)  # half a GPU's worth
    assert not pricing(tiny).is_overpriced(job(2000.0, 600.0))


@pytest.mark.parametrize("step_s", [-10 * DAY_S, -3600.0, 3600.0, 1000 * DAY_S])
def test_a_clock_that_jumps_leaves_prices_that_are_finite_and_monotone(step_s: float) -> None:
    prices = pricing(CHEAP_FILL_THE_POOL, now_s=DAY_S + step_s)
    found = [displaced(prices, 1000.0, window_s) for window_s in (200.0, 600.0, 6000.0, 60_000.0)]
    assert all(0.0 <= each < math.inf for each in found)
    assert sorted(found, reverse=True) == found


def test_a_pool_that_doubles_lowers_the_price_and_one_that_halves_raises_it() -> None:
    cheap, dear = every(60.0, 250.0), every(200.0, 1000.0)
    for at_s, gpu_seconds, window_s in zip(*[iter(dear.newest)] * 3, strict=True):
        cheap = cheap.added(at_s, gpu_seconds, window_s)
    half, whole, double = (
        displaced(pricing(cheap, num_gpus=num_gpus), 1000.0, 600.0)
        for num_gpus in (NUM_GPUS // 2, NUM_GPUS, 4 * NUM_GPUS)
    )
    assert half > whole > double == 0.0


@pytest.mark.parametrize("window_s", [1e9, 1e12, 1e15])
def test_a_deadline_beyond_any_horizon_costs_what_the_job_needs_within_it(window_s: float) -> None:
    full = pricing(CHEAP_FILL_THE_POOL)
    assert displaced(full, 1e6, window_s) < 1.0
    assert displaced(full, 7.9 * window_s, window_s) > 1.0
