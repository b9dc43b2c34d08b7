"""The benchmark of the engine runs, with real workers and little work. No time is asserted."""

import os

import pytest

from benchmarks.engine import resizes, restores, stalls, torchft, torchrun, transient
from benchmarks.engine.parts import Options
from benchmarks.engine.resizes import fitted, stops_by_num_gpus
from benchmarks.engine.stalls import measure_stalls
from benchmarks.engine.steady import measure_steady
from benchmarks.engine.transient import Lending, measure_transient

SMALL = Options(million_parameters=(1,), rounds=1, losses=2)


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
def test_every_mode_is_measured_next_to_plain_ddp() -> None:
    modes = ("fast", "bitwise_4")
    row = measure_steady("gpt", million_parameters=1, num_workers=2, rounds=1, modes=modes)
    assert all(row[f"{mode}_{what}"] > 0 for mode in modes for what in ("step_s", "cpu_s", "ratio", "cpu_ratio"))


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
def test_changes_and_losses_are_measured() -> None:
    rows = resizes.measure(SMALL)
    assert [row["change"] for row in rows][:3] == ["2 -> 4", "4 -> 8", "8 -> 2"]
    assert rows[0]["bytes_moved"] > 0 == rows[2]["bytes_moved"]
    assert min(rows[0][name] for name in ("restart_s", "hang_p99_s")) > 0
    assert rows[0]["goal_s"] == 0.02 + 2 * rows[0]["bytes_moved"] / rows[0]["copied_bytes_per_s"]
    assert [row.get("num_losses") for row in rows] == [2, 2, *[None] * (len(rows) - 2)], "of two workers, and of four"
    assert all(0 < row["crash_s"] < row["replaced_s"] for row in rows[:2]), "of two workers, and of four"
    assert stops_by_num_gpus(rows).keys() == {"1", "2", "4", "8"}
    assert fitted(rows)["relative_error_rms"] >= 0
    assert resizes.table(rows).row_count == len(rows)


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
def test_the_cost_of_a_secret_is_measured() -> None:
    (row,) = resizes.measure_secrets(SMALL)
    assert min(row[f"{time}_{what}_s"] for time in ("stop", "prepare") for what in ("with", "without")) > 0
    assert resizes.secrets_table([row]).row_count == 1


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
@pytest.mark.skipif("EF_BENCHMARK_PEERS" not in os.environ, reason="EF_BENCHMARK_PEERS=1 measures others, too")
def test_a_restart_under_torchrun_is_measured() -> None:
    (row,) = torchrun.measure(SMALL)
    assert min(row["2 -> 4"], row["4 -> 2"], row["crash_s"]) > 0


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
def test_torchft_is_measured_or_reported_missing() -> None:
    (row,) = torchft.measure(SMALL)
    if "not installed" in row.get("error", ""):
        pytest.skip(row["error"])
    assert row["crash_s"] > 0


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
async def test_transient_gpus_are_measured_next_to_a_restart() -> None:
    rows = await measure_transient(1, Lending(period_s=1.0), rounds=1)
    assert [row["way"] for row in rows] == ["gone-over", "stopped-and-resumed"]
    assert all(row["steps"] > 0 and row["of_ideal"] > 0 for row in rows)
    assert transient.table(rows).row_count == 2


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
def test_the_cost_of_a_restore_is_measured() -> None:
    row = restores.measure_restores(1, rounds=1)
    assert row["num_bytes"] > 7_000_000, "weights and momentum"
    assert row["bytes_per_s"] > 0
    assert restores.table([row | {"copied_bytes_per_s": 1e9}]).row_count == 1


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its tables")
async def test_the_cost_of_checkpoints_and_joining_workers_is_measured() -> None:
    row = await measure_stalls(1, rounds=1)
    assert row["step_s"] > 0
    assert stalls.table([row]).row_count == 1
