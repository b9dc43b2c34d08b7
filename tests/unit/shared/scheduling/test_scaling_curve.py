import math

import pytest

from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve

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
