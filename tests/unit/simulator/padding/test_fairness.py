"""Jain's index of each minute, among the tenants with waiting tasks."""

import pytest

from elasticflow.simulator.padding.load_simulation import FairnessMeter, jain_index


@pytest.mark.parametrize(
    ("values", "index"), [((1, 1, 1), 1.0), ((3, 0, 0), 1 / 3), ((1, 2), 0.9), ((0, 0), 1.0), ((5,), 1.0)]
)
def test_the_index_of_known_shares(values: tuple[float, ...], index: float) -> None:
    assert jain_index(values) == pytest.approx(index)


def test_a_time_across_minutes_counts_in_each_of_them() -> None:
    meter = FairnessMeter({"x": 1.0, "y": 1.0})
    meter.backlogged(["x", "y"], 0.0)
    meter.gave("x", 30.0, 130.0)
    meter.gave("y", 60.0, 100.0)
    assert meter.by_minute() == pytest.approx({0: 0.5, 1: jain_index((60, 40)), 2: 0.5})


def test_shares_are_compared_by_weight() -> None:
    meter = FairnessMeter({"x": 1.0, "y": 3.0})
    meter.backlogged(["x", "y"], 0.0)
    meter.gave("x", 0.0, 10.0)
    meter.gave("y", 10.0, 40.0)
    assert meter.by_minute() == pytest.approx({0: 1.0})


def test_a_minute_counts_only_tenants_that_waited_all_of_it() -> None:
    meter = FairnessMeter({"x": 1.0, "y": 1.0, "z": 1.0})
    meter.backlogged(["x", "y"], 0.0)  # z never waits
    meter.gave("x", 0.0, 300.0)
    meter.backlogged(["x"], 70.0)
    meter.backlogged(["x", "y"], 80.0)
    meter.backlogged(["x"], 200.0)  # y waits during all of minutes 0 and 2 alone
    assert list(meter.by_minute()) == [0, 2]


def test_a_pause_of_no_length_is_no_pause() -> None:
    meter = FairnessMeter({"x": 1.0, "y": 1.0})
    meter.backlogged(["x", "y"], 0.0)
    meter.gave("x", 0.0, 60.0)
    meter.backlogged(["x"], 30.0)
    meter.backlogged(["x", "y"], 30.0)
    assert list(meter.by_minute()) == [0]
