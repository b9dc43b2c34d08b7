"""The benchmark of placement measures what it reports, here in a small pool; no time is asserted."""

import pytest

from benchmarks.placement import GOALS_MS, measure_pool


@pytest.mark.parametrize("share_unpromised", [0.0, 1.0])
def test_a_small_pool_is_measured_whole(share_unpromised: float) -> None:
    measured = measure_pool(num_nodes=8, num_jobs=12, share_unpromised=share_unpromised, num_changes=40)
    assert (measured["num_gpus"], measured["num_jobs"]) == (64, 12)
    assert measured["cpu_ms"].keys() == GOALS_MS.keys()
    assert measured["migrations"] > 0, "promised jobs make room for each other too"
    assert 0.0 <= measured["share_in_pieces"] < 1.0
