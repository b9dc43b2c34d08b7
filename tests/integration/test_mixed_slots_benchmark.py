"""The benchmark of mixed slots runs, with real workers and little work. No time is asserted."""

import pytest

from benchmarks.heterogeneous.mixed_slots import measured_mixed_slots, rows


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its table")
async def test_a_mix_is_predicted_and_measured() -> None:
    measured = await measured_mixed_slots(1, sums=(), iterations=3)
    (mix,) = measured["mixes"]
    assert (mix["num_fast"], mix["num_slow"]) == (1, 1)
    fast, *slow = mix["virtual_nodes_by_rank"]
    assert fast + sum(slow) == 16
    assert mix["corrected_s"] == mix["predicted_s"]  # no mix has trained before it
    assert len(list(rows(measured))) == 4
