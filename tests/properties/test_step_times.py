"""Step times by GPU type and communication times, over odd measurements."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes, StepTimes, predicted_from

SECONDS = st.floats(1e-3, 1e3)
MEASURED = st.dictionaries(st.integers(1, 200), SECONDS, min_size=1, max_size=8)
TIMES = MEASURED.map(lambda measured: StepTimes.of_measurements("a", measured))
OTHER_TIMES = MEASURED.map(lambda measured: StepTimes.of_measurements("b", measured))
STEPS_S = st.dictionaries(st.integers(2, 100), st.tuples(SECONDS, SECONDS), max_size=5)


@given(TIMES, OTHER_TIMES, SECONDS, st.integers(1, 300), st.integers(1, 64))
def test_more_samples_or_virtual_nodes_never_take_less_time(
    times: StepTimes, other: StepTimes, speed_ratio: float, global_batch_size: int, num_virtual_nodes: int
) -> None:
    for one in (times, times.extended_from(other, speed_ratio)):
        seconds = [one.at(samples).step_s for samples in range(1, 300)]
        assert all(low <= high for low, high in pairwise(seconds))
        of_nodes_s = one.of_virtual_nodes(global_batch_size, num_virtual_nodes)
        assert len(of_nodes_s) == num_virtual_nodes
        assert of_nodes_s[-1] == one.at(global_batch_size).step_s
        assert all(low <= high for low, high in pairwise(of_nodes_s))


@given(TIMES, OTHER_TIMES, SECONDS)
def test_measured_times_stay_and_everything_outside_them_is_marked(
    times: StepTimes, other: StepTimes, speed_ratio: float
) -> None:
    extended = times.extended_from(other, speed_ratio)
    first, last = times.points_P[0].samples, times.points_P[-1].samples
    for samples in range(1, 300):
        assert extended.at(samples).measured == times.at(samples).measured == (first <= samples <= last)
        if first <= samples <= last:
            assert extended.at(samples) == times.at(samples)


@given(TIMES, SECONDS)
def test_the_ratio_of_speeds_is_the_one_that_predicted(times: StepTimes, speed_ratio: float) -> None:
    predicted = predicted_from(times, "b", speed_ratio)
    assert not any(point.measured for point in predicted.points_P)
    measured = StepTimes.of_measurements("b", {point.samples: point.step_s for point in predicted.points_P})
    assert measured.speed_ratio(times) == pytest.approx(speed_ratio)


@given(STEPS_S)
def test_more_workers_never_communicate_for_a_shorter_time(steps_s: dict[int, tuple[float, float]]) -> None:
    communication = CommunicationTimes.of_measurements(steps_s)
    seconds = [communication.at(num_workers) for num_workers in range(1, 300)]
    assert seconds[0] == 0.0
    assert all(low <= high for low, high in pairwise(seconds))
    for num_workers, (distributed_s, alone_s) in steps_s.items():
        assert communication.at(num_workers) >= distributed_s - alone_s
