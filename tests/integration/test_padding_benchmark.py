"""The measurements of padding loads run, with little work, and name their numbers. No time is asserted."""

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.padding.__main__ import PARTS, main
from benchmarks.padding.beside_jobs import measure_beside_jobs, measure_placements
from benchmarks.padding.preempted import measure_preempted, measure_useful_shares
from benchmarks.padding.runners import (
    measure_gaps,
    measure_preemption,
    measure_start,
    measure_throughput,
    running_launcher,
)
from benchmarks.padding.whole_loads import measure_fairness, measure_idle, measure_streams, measure_whole_loads


def test_an_unknown_part_is_wrong_usage_and_the_parts_are_named() -> None:
    command = typer.Typer()
    command.command()(main)
    ran = CliRunner().invoke(command, ["--only", "kills,nonsense"], env={"COLUMNS": "200"})
    assert ran.exit_code == 2
    assert all(name in ran.output for name in ("nonsense", *PARTS))


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_every_measurement_of_runners_has_numbers() -> None:
    async with running_launcher() as runners:
        start = await measure_start(runners, num_rounds=2)
        assert min(start["start_ms"]["p50"], start["python_c_pass_ms"]["p50"]) > 0
        gaps = await measure_gaps(runners, num_bundles=3)
        assert min(gaps["within_ms"]["p50"], gaps["between_ms"]["p50"]) > 0
        throughput = await measure_throughput(runners, num_bundles=3)
        assert throughput["tasks"] == 300
        assert throughput["tasks_per_s"] > 0
        preemption = await measure_preemption(runners, num_rounds=2, num_bytes=1_000_000)
        for what in ("preempt_ms", "sigkill_and_waitpid_ms", "unused_fork_ms"):
            assert preemption[what]["max"] >= preemption[what]["p50"] > 0


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_the_streams_are_measured() -> None:
    measured = await measure_streams(num_messages=20, tasks_per_bundle=(1, 10))
    assert measured.keys() == {"raw", "bundles_of_1", "bundles_of_10"}
    assert all(per_s > 0 for numbers in measured.values() for per_s in numbers.values())
    tens = measured["bundles_of_10"]
    assert round(tens["pull_and_ack_tasks_per_s"] / tens["pull_and_ack_per_s"]) == 10


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_whole_loads_are_measured() -> None:
    measured = await measure_whole_loads(num_empty_tasks=50, num_tasks=4, task_s=0.01)
    assert min(measured["empty_tasks_per_s"], measured["raw_messages_per_s"]) > 0
    assert 0 < measured["useful_share"] <= 1
    assert len(list(PARTS["whole_loads"].rows(measured))) == 2


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_steps_beside_a_load_are_measured() -> None:
    measured = await measure_beside_jobs(num_rounds=1, round_s=0.3)
    assert min(measured["step_ms_without_load"], measured["step_ms_with_load"]) > 0
    assert measured["ratio"] == pytest.approx(measured["step_ms_with_load"] / measured["step_ms_without_load"])
    assert list(PARTS["beside_jobs"].rows(measured))


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_a_load_on_slots_that_jobs_take_is_measured() -> None:
    (measured,) = await measure_preempted(num_tasks=12, windows_s=(3.0,))
    assert min(measured["exclusive_s"], measured["preempted_s"]) > 0
    assert len(list(PARTS["preempted"].rows([measured]))) == 1


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_useful_shares_are_measured_beside_their_predictions() -> None:
    measured = await measure_useful_shares(num_windows=2, mean_gaps_s=(3.0,), long_gap_s=3.0, seed=1)
    group, long = measured["groups"]
    assert (group["windows"], long["windows"]) == (2, 1)
    assert 0 <= group["useful_share"] < 1
    assert long["predicted_useful_share"] > 0
    assert len(list(PARTS["useful_shares"].rows(measured))) == 4


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_an_idle_pool_is_measured_with_and_without_a_load() -> None:
    measured = await measure_idle(seconds=0.2, settled_s=0.1)
    assert measured["percent_without_load"].keys() == measured["percent_with_open_load"].keys()
    assert "monitor" in measured["percent_without_load"]
    assert list(PARTS["idle"].rows(measured))


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_times_from_a_placement_on_are_measured() -> None:
    measured = await measure_placements(num_rounds=1)
    for what in ("runner_gone_ms", "first_step_without_load_ms", "first_step_with_load_ms"):
        assert measured[what]["p50"] > 0, what
    assert len(list(PARTS["placements"].rows(measured))) == 4


@pytest.mark.nightly("a run of a benchmark; unit/benchmarks/test_recorded_results.py has its rows")
async def test_three_tenants_share_the_slots() -> None:
    measured = await measure_fairness(num_windows=2, window_s=2.0)
    assert all(sum(gpu_s) > 0 for gpu_s in measured["gpu_s"].values())
    assert 1 / 3 <= measured["least_jain"] <= 1.0 + 1e-9
    assert list(PARTS["fairness"].rows(measured))
