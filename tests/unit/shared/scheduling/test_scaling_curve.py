"""Scaling curves. Speed by what connects the GPUs: never promised too high, and worth a move only if measured."""

import math

import pytest

from elasticflow.shared.scheduling.jobs.scaling_curve import (
    UNMEASURED_SAVING,
    PlacementCurves,
    ScalingCurve,
    placement_curves,
)
from elasticflow.shared.scheduling.placement.placement import MigrationBenefit
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.topology import CLUSTER, NODE, RACK, SOCKET

FALLING = ScalingCurve((1, 2, 4, 16), (3.0, 2.0, 5.0, 5.0))


def test_throughput_is_zero_where_nothing_was_measured() -> None:
    assert [FALLING.throughput(n) for n in (0, 1, 2, 3, 4, 8, 16)] == [0, 3, 2, 0, 5, 0, 5]


def test_levels_are_only_those_that_are_faster_than_all_smaller_ones() -> None:
    assert FALLING.max_useful_gpus == 4
    assert FALLING.levels == (1, 4)


def test_least_gpu_seconds_mixes_the_cheapest_levels() -> None:
    curve = ScalingCurve((1, 2, 4), (1.0, 1.5, 2.0))
    assert curve.least_gpu_seconds(10, 20.0) == 10.0  # one GPU is enough, and cheapest
    assert curve.least_gpu_seconds(10, math.inf) == 10.0
    assert curve.least_gpu_seconds(10, 8.0) == pytest.approx(12.0)  # half the time on 1, half on 2
    assert curve.least_gpu_seconds(10, 5.0) == pytest.approx(20.0)
    assert curve.least_gpu_seconds(10, 4.0) == math.inf
    assert curve.least_gpu_seconds(10, -1.0) == math.inf


@pytest.mark.parametrize(
    ("levels", "rates"),
    [
        ((), ()),
        ((1, 2), (1.0,)),
        ((1, 3), (1.0, 2.0)),
        ((0, 1), (0.0, 2.0)),
        ((2, 1), (1.0, 2.0)),
        ((1, 1), (1.0, 2.0)),
        ((1,), (math.nan,)),
        ((1,), (math.inf,)),
        ((1, 2), (1.0, -1.0)),
        ((1, 2), (0.0, 0.0)),
    ],
)
def test_what_is_no_curve_is_refused(levels: tuple[int, ...], rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        ScalingCurve(levels, rates)


CURVES = placement_curves(
    MeasuredCurve(
        iterations_per_s={1: 1.0, 2: 1.8, 8: 3.0, 16: 4.0},
        at_level={NODE: {2: 2.0, 4: 3.0, 8: 6.0}, CLUSTER: {8: 2.0}},
    )
)


@pytest.mark.parametrize(
    ("num_gpus", "level", "iterations_per_s"),
    [
        (8, NODE, 6.0),
        (8, SOCKET, 6.0),  # not measured there: at the next slower level
        (8, RACK, 2.0),
        (2, RACK, 1.8),  # at no slower level either: wherever it was measured
        (4, CLUSTER, 0.0),  # never measured so far apart
        (1, SOCKET, 1.0),
    ],
)
def test_the_speed_at_a_level_is_never_guessed_upwards(num_gpus: int, level: int, iterations_per_s: float) -> None:
    assert CURVES.throughput(num_gpus, level) == iterations_per_s


def test_a_promise_counts_on_the_worst_place_that_it_may_get() -> None:
    assert CURVES.guaranteed() == ScalingCurve((1, 2, 8, 16), (1.0, 1.8, 2.0, 4.0))
    assert CURVES.guaranteed(NODE) == ScalingCurve((1, 2, 4, 8, 16), (1.0, 2.0, 3.0, 6.0, 4.0))
    assert PlacementCurves(None, {}).guaranteed() is None


def test_one_table_for_all_places_is_what_a_promise_counts_on() -> None:
    curve = ScalingCurve((1, 2), (1.0, 1.5))
    assert PlacementCurves(curve, {}).guaranteed() == curve


def test_the_margin_applies_to_every_level() -> None:
    measured = MeasuredCurve(iterations_per_s={}, at_level={RACK: {2: 4.0, 3: 9.0, 4: 0.0}})
    assert placement_curves(measured, 0.5).guaranteed(RACK) == ScalingCurve((2,), (2.0,))


def test_a_closer_place_saves_what_the_tables_say_or_else_a_little() -> None:
    assert CURVES.time_saved(8, CLUSTER, NODE) == pytest.approx(2 / 3)
    assert CURVES.time_saved(8, NODE, CLUSTER) == 0.0
    assert CURVES.time_saved(8, NODE, SOCKET) == 0.0  # measured, and no difference known
    assert CURVES.time_saved(16, CLUSTER, NODE) == UNMEASURED_SAVING
    migration_benefit = MigrationBenefit(curves=CURVES, num_gpus=8, stay_s=30.0, stop_s=5.0)
    assert migration_benefit.gained_gpu_seconds(CLUSTER, NODE) == pytest.approx(160.0)
    assert migration_benefit.lost_gpu_seconds == 40.0
