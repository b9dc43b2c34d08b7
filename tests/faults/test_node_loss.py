"""Survivors of a lost node continue, and the benchmark measures both times of their first step; no time is asserted."""

import pytest

from benchmarks.engine.node_loss import measure_node_losses


@pytest.mark.nightly("a benchmark; unit/benchmarks/test_engine.py has its arithmetic")
async def test_a_lost_node_is_measured_to_the_beginning_and_the_end_of_the_next_step() -> None:
    measured = await measure_node_losses(1, seed=0, placement_chance=0.4)
    (repeat,) = measured["repeats"]
    assert 0 < repeat["begun_s"] < repeat["ended_s"]
    assert measured["begun"]["worst_s"] == repeat["begun_s"]
    assert measured["ended"]["worst_s"] == repeat["ended_s"]
