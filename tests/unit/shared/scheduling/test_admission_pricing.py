"""Selective admission: what a job may ask for, by what was asked for lately."""

import math
from dataclasses import replace

import pytest

from elasticflow.shared.scheduling.admission.admission_pricing import (
    FEWEST_SUBMISSIONS,
    USABLE_CAPACITY,
    AdmissionPricing,
)
from elasticflow.shared.scheduling.availability.availability_profile import empty_availability_profile
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import Demand

DAY_S = 86_400.0
NUM_GPUS = 8


def demand(*asked: tuple[float, float]) -> Demand:
    """Of these: at_s and GPU-seconds."""
    made = Demand()
    for at_s, gpu_seconds in asked:
        made = made.added(at_s, gpu_seconds)
    return made


def price_limit(
    history: Demand,
    *coming: float,
    now_s: float,
    window_s: float = 600.0,
    num_gpus: int = NUM_GPUS,
) -> float:
    return AdmissionPricing(history, coming, now_s, num_gpus).price_limit_gpu_seconds(window_s)


def every(gap_s: float, gpu_seconds: float, until_s: float = DAY_S) -> list[tuple[float, float]]:
    return [(number * gap_s, gpu_seconds) for number in range(int(until_s / gap_s))]


def test_without_any_demand_everything_is_taken() -> None:
    assert price_limit(Demand(), now_s=0.0) == math.inf
    assert price_limit(Demand(), now_s=DAY_S) == math.inf


def test_a_pool_that_is_hardly_asked_takes_everything() -> None:
    seldom = demand(*every(3600.0, 1000.0))
    assert price_limit(seldom, now_s=DAY_S) == math.inf


def test_of_a_few_submissions_nothing_is_learned() -> None:
    few = demand(*[(0.0, 1e6)] * (FEWEST_SUBMISSIONS - 1))
    assert price_limit(few, now_s=1.0) == math.inf
    assert price_limit(few.added(0.0, 1e6), now_s=1.0) < math.inf
    assert price_limit(few, 1e6, now_s=1.0) < math.inf, "the commands of the decision count"


def test_where_cheap_jobs_fill_the_pool_dear_ones_are_too_dear() -> None:
    expensive = every(600.0, 6000.0)  # 10 GPUs' worth, of the 8 there are
    some_cheap = demand(
        *sorted(every(60.0, 200.0) + expensive)
    )  # 3.3 GPUs' worth: there is capacity for expensive ones
    assert price_limit(some_cheap, now_s=DAY_S) == 6000.0
    more_cheap = demand(*sorted(every(30.0, 250.0) + expensive))  # 8.3 GPUs' worth: there is none
    assert price_limit(more_cheap, now_s=DAY_S) == 250.0
    assert price_limit(more_cheap, now_s=DAY_S, num_gpus=4 * NUM_GPUS) == math.inf


def test_a_job_does_not_stand_in_its_own_way_nor_do_its_equals() -> None:
    usable = USABLE_CAPACITY * NUM_GPUS * 3600.0
    others = demand((0.0, 1.0), *[(DAY_S, 0.9 * usable / 30)] * 30)
    large = 0.2 * usable
    assert price_limit(others, now_s=DAY_S) == math.inf
    assert price_limit(others, large, now_s=DAY_S) >= large
    assert price_limit(others, large, large, now_s=DAY_S) >= large
    full = demand((0.0, 1.0), *[(DAY_S, 1.1 * usable / 30)] * 30)
    assert price_limit(full, large, now_s=DAY_S) < large
    assert price_limit(full, now_s=DAY_S) == 1.1 * usable / 30, "no cheaper job competes with them"
    assert price_limit(full, 2.0, now_s=DAY_S) == price_limit(full, now_s=DAY_S)


def test_demand_is_forgotten_and_looked_at_through_a_window_as_long_as_the_jobs() -> None:
    burst = demand((0.0, 1.0), *((DAY_S + number, 100.0 * (number + 1)) for number in range(60)))
    now_s = DAY_S + 60.0
    hourly = [price_limit(burst, now_s=now_s + hours * 3600.0) for hours in range(8)]
    assert hourly[0] < 6000.0
    assert hourly == sorted(hourly), "the limit only grows without new demand"
    assert hourly[-1] == math.inf
    assert price_limit(burst, now_s=now_s, window_s=10.0) == hourly[0], "an hour is remembered at least"
    assert price_limit(burst, now_s=now_s, window_s=2 * DAY_S) == math.inf, "two days have capacity for all"


def test_a_short_window_takes_no_more_than_a_longer_one() -> None:
    crowd = every(30.0, 250.0)  # 8.3 GPUs' worth, for a day
    quiet = demand(*crowd, *((DAY_S + number * 3600.0, 6000.0) for number in range(1, 9)))
    by_window = [price_limit(quiet, now_s=DAY_S + 8 * 3600.0, window_s=hours * 3600.0) for hours in (1, 4, 20, 90)]
    assert by_window == sorted(by_window)
    assert by_window[0] < 6000.0, "one hour alone would have capacity for it"


def test_what_leaves_the_pool_nearly_idle_by_some_instant_is_taken_by_any_deadline_after_it() -> None:
    crowded = AdmissionPricing(demand(*every(30.0, 250.0)), [], DAY_S, NUM_GPUS)
    request = SchedulableJob(job_id="job", curve=ScalingCurve((1,), (1.0,)), remaining_iterations=1000.0)
    free = empty_availability_profile(2)  # for a quarter of an hour all GPUs, then none
    free.start_B[:], free.free_B[:], free.size[0] = (DAY_S, DAY_S + 900.0), (NUM_GPUS, 0), 2
    by_deadline = [
        crowded.is_overpriced(replace(request, deadline_s=DAY_S + window_s), free) for window_s in (1100.0, 9000.0)
    ]
    assert by_deadline == [False, False]
    assert crowded.is_overpriced(replace(request, remaining_iterations=4000.0, deadline_s=DAY_S + 9000.0), free)


def test_the_commands_of_the_decision_count_as_demand() -> None:
    quiet = demand(*every(3600.0, 100.0))
    assert price_limit(quiet, now_s=DAY_S) == math.inf
    assert price_limit(quiet, *[50.0] * 500, now_s=DAY_S) == 50.0  # 25,000 GPU-seconds in an hour of 8 GPUs


def test_the_order_in_which_it_was_asked_for_does_not_matter() -> None:
    at_once = [(DAY_S, 50.0 * number) for number in range(100)]
    first = price_limit(demand((0.0, 1.0), *at_once), now_s=DAY_S + 1.0)
    last = price_limit(demand((0.0, 1.0), *reversed(at_once)), now_s=DAY_S + 1.0)
    assert first == last
    assert 0.0 < first < 4950.0


@pytest.mark.parametrize("num_gpus", [1, 4, 64])
def test_twice_the_gpus_take_at_least_what_half_of_them_take(num_gpus: int) -> None:
    some = demand(*((number * 37.0, float(1 + number * 7919 % 1000)) for number in range(500)))
    fewer, more = (price_limit(some, now_s=20_000.0, num_gpus=count) for count in (num_gpus, 2 * num_gpus))
    assert fewer <= more
