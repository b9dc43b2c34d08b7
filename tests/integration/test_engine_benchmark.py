"""The engine's benchmark runs: real workers in each mode, a little work, no time asserted."""

from benchmarks.engine.__main__ import JOBS, measure


async def test_every_mode_and_plain_ddp_are_measured() -> None:
    (row,) = await measure(rounds=1, num_steps=3, sizes=(1,), worker_counts=(2,))
    assert {key for key in row if key.endswith("_step_s")} == {f"{mode}_step_s" for mode in ("plain", *JOBS)}
    assert all(row[key] > 0 for key in row)
