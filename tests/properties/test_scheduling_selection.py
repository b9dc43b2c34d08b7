"""A job that `selective` admits is also admitted with more time, less work or more GPUs."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.admission.admission_pricing import FEWEST_SUBMISSIONS, AdmissionPricing
from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.pool import Demand
from tests.support.example_specs import examples

NUM_GPUS = 4
WINDOWS_S = [100.0 * 1.3**step for step in range(32)]  # to four days
CURVE = ScalingCurve((1, 2, 4), (1.0, 1.7, 2.5))

Asked = Sequence[tuple[int, float, float]]

asked_for = st.lists(
    st.tuples(
        st.integers(FEWEST_SUBMISSIONS // 2, 40),
        st.sampled_from([0.0, 40.0, 300.0, 900.0, 3600.0]),
        st.sampled_from([20.0, 300.0, 1500.0, 8000.0]),
    ),
    min_size=2,
    max_size=4,
)
"""One time after another: how many asked, seconds between them, and GPU-seconds; the last one now."""

free_gpus = st.lists(
    st.tuples(st.sampled_from([60.0, 500.0, 2000.0, 9000.0]), st.sampled_from([0, NUM_GPUS - 1, NUM_GPUS])),
    max_size=6,
)
"""How long, and how many; all of them afterwards."""

iterations = st.sampled_from([100.0, 400.0, 1500.0, 5000.0, 2e4])


def selection(asked: Asked, num_gpus: int = NUM_GPUS) -> AdmissionPricing:
    demand, at_s = Demand(), -sum(count * gap_s for count, gap_s, _ in asked)
    for count, gap_s, gpu_seconds in asked:
        for _ in range(count):
            at_s += gap_s
            demand = demand.added(at_s, gpu_seconds)
    return AdmissionPricing(demand, (), 0.0, num_gpus)


def profile(pieces: Sequence[tuple[float, int]], more_gpus: int = 0) -> AvailabilityProfile:
    made, at_s = empty_availability_profile(len(pieces) + 1), 0.0
    for piece, (lasts_s, free) in enumerate([*pieces, (math.inf, NUM_GPUS)]):
        made.start_B[piece], made.free_B[piece] = at_s, free + more_gpus
        at_s += lasts_s
    made.size[0] = len(pieces) + 1
    return made


def job(count: float, deadline_s: float) -> SchedulableJob:
    return SchedulableJob(job_id="job", curve=CURVE, remaining_iterations=count, deadline_s=deadline_s)


@examples(500)
@given(asked_for, free_gpus, iterations, st.floats(0.1, 1.0), st.integers(1, 5))
def test_nothing_becomes_too_dear_with_more_time_less_work_or_more_gpus(
    asked: Asked, pieces: Sequence[tuple[float, int]], count: float, part: float, more_gpus: int
) -> None:
    here, free = selection(asked), profile(pieces)
    there, more_free = selection(asked, NUM_GPUS + more_gpus), profile(pieces, more_gpus)
    requests = [job(count, window_s) for window_s in WINDOWS_S]
    overpriced = [here.is_overpriced(request, free) for request in requests]
    assert overpriced == sorted(overpriced, reverse=True), "more time"
    for was_overpriced, request in zip(overpriced, requests, strict=True):
        if not was_overpriced:
            assert not here.is_overpriced(replace(request, remaining_iterations=part * count), free)
            assert not there.is_overpriced(request, more_free)
    price_limits = [here.price_limit_gpu_seconds(window_s) for window_s in WINDOWS_S]
    assert price_limits == sorted(price_limits)


@given(asked_for, free_gpus, iterations, st.floats(0.0, 40_000.0))
def test_the_first_deadline_that_is_worth_it_is_where_worth_begins(
    asked: Asked, pieces: Sequence[tuple[float, int]], count: float, later_s: float
) -> None:
    here, free = selection(asked), profile(pieces)
    first_s = here.first_affordable_s(job(count, math.inf), 60.0, 1.0, free)
    assert first_s is not None
    assert not here.is_overpriced(job(count, first_s + later_s), free)
    assert first_s == 60.0 or here.is_overpriced(job(count, first_s - 1.0), free)
