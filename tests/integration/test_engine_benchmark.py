"""The engine's benchmark runs: real workers in each mode, a little work, no time asserted."""

from benchmarks.engine.__main__ import JOBS, measure, measure_changes, stops_by_num_gpus


async def test_every_mode_and_plain_ddp_are_measured() -> None:
    (row,) = await measure(rounds=1, num_steps=3, sizes=(1,), worker_counts=(2,))
    assert {key for key in row if key.endswith("_step_s")} == {f"{mode}_step_s" for mode in ("plain", *JOBS)}
    assert all(row[key] > 0 for key in row)


async def test_changes_are_measured_both_ways_and_a_crash() -> None:
    grown, shrunk = await measure_changes(rounds=1, sizes=(1,))
    assert (grown["change"], shrunk["change"]) == ("2 -> 4", "4 -> 2")
    assert grown["bytes_moved"] > shrunk["bytes_moved"] == 0
    assert min(grown["stop_s"], grown["restart_s"], shrunk["stop_s"], shrunk["crash_s"]) > 0
    assert stops_by_num_gpus([grown, shrunk]).keys() == {"2", "4"}
