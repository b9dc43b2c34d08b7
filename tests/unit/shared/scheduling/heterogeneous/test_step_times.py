"""Step times between measured points and outside them, and what is predicted from another type."""

import math

import pytest

from elasticflow.shared.scheduling.heterogeneous.step_times import (
    CommunicationTimes,
    StepTime,
    StepTimes,
    predicted_from,
)

TIMES = StepTimes.of_measurements("V100", {4: 1.0, 8: 1.4, 16: 3.0})


@pytest.mark.parametrize(
    ("samples", "step_s", "measured"),
    [
        (1, 1.0, False),
        (4, 1.0, True),
        (6, 1.2, True),
        (8, 1.4, True),
        (10, 1.8, True),
        (16, 3.0, True),
        (32, 6.0, False),
    ],
)
def test_times_are_linear_between_points_and_proportional_beyond(samples: int, step_s: float, measured: bool) -> None:
    assert TIMES.at(samples) == StepTime(samples, pytest.approx(step_s), measured)


def test_a_shorter_time_for_more_samples_is_noise() -> None:
    noisy = StepTimes.of_measurements("V100", {8: 1.4, 4: 1.5, 16: 3.0})
    assert [point.step_s for point in noisy.points_P] == [1.5, 1.5, 3.0]


def test_virtual_nodes_take_the_time_of_their_samples() -> None:
    assert TIMES.of_virtual_nodes(16, 4) == pytest.approx((1.0, 1.4, 2.2, 3.0))


def test_unequal_virtual_nodes_count_as_the_larger_ones() -> None:
    assert TIMES.of_virtual_nodes(21, 8) == tuple(TIMES.at(samples).step_s for samples in (3, 6, 8, 11, 14, 16, 19, 21))


def test_a_type_that_was_not_measured_is_predicted_and_marked() -> None:
    predicted = predicted_from(TIMES, "K80", 0.25)
    assert predicted.at(8) == StepTime(8, pytest.approx(5.6), measured=False)
    assert predicted.at(6) == StepTime(6, pytest.approx(4.8), measured=False)
    assert predicted.gpu_type == "K80"


def test_points_outside_the_measured_range_are_predicted_by_the_ratio_of_speeds() -> None:
    partly = StepTimes.of_measurements("K80", {8: 2.8, 16: 6.0})
    ratio = partly.speed_ratio(TIMES)
    assert ratio == pytest.approx(0.5)
    extended = partly.extended_from(StepTimes.of_measurements("V100", {4: 1.0, 8: 1.4, 16: 3.0, 32: 4.0}), ratio or 0.0)
    assert [tuple(point) for point in extended.points_P] == [
        (4, pytest.approx(2.0), False),
        (8, 2.8, True),
        (16, 6.0, True),
        (32, pytest.approx(8.0), False),
    ]
    assert extended.at(12).measured
    assert not extended.at(24).measured


def test_predictions_are_not_predicted_from_predictions() -> None:
    with pytest.raises(ValueError, match="P100"):
        predicted_from(predicted_from(TIMES, "K80", 0.25), "P100", 2.0)
    assert TIMES.speed_ratio(predicted_from(TIMES, "K80", 0.25)) is None


@pytest.mark.parametrize(
    "points", [(), ((0, 1.0),), ((1, 0.0),), ((1, math.inf),), ((1, 2.0), (2, 1.0)), ((1, 1.0),) * 2]
)
def test_impossible_points_are_an_error(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="K80"):
        StepTimes(gpu_type="K80", points_P=tuple(StepTime(*point) for point in points))


@pytest.mark.parametrize("speed_ratio", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_ratio_of_speeds_is_an_error(speed_ratio: float) -> None:
    with pytest.raises(ValueError, match="K80"):
        predicted_from(TIMES, "K80", speed_ratio)


def test_communication_is_linear_in_the_logarithm_of_the_workers() -> None:
    communication = CommunicationTimes.of_measurements({8: (1.9, 1.0), 2: (1.1, 1.0), 4: (1.3, 1.0)})
    assert [communication.at(workers) for workers in (1, 2, 4, 8, 16)] == pytest.approx([0.0, 0.1, 0.3, 0.9, 1.5])
    assert communication.at(3) == pytest.approx(0.1 + 0.2 * math.log2(1.5))
    assert CommunicationTimes().at(100) == 0.0
    assert CommunicationTimes((4,), (1.0,)).at(2) == pytest.approx(0.5)


def test_communication_of_another_type_is_marked_as_predicted() -> None:
    measured = CommunicationTimes.of_measurements({2: (1.1, 1.0)})
    assert measured.measured
    predicted = measured.times(2.0)
    assert (predicted.at(2), predicted.measured) == (pytest.approx(0.2), False)


@pytest.mark.parametrize(
    ("num_workers", "communication_s"),
    [((1,), (0.0,)), ((2, 2), (1.0, 1.0)), ((2,), ()), ((2,), (-1.0,)), ((2, 4), (2.0, 1.0)), ((2,), (math.inf,))],
)
def test_impossible_communication_is_an_error(num_workers: tuple[int, ...], communication_s: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        CommunicationTimes(num_workers, communication_s)
