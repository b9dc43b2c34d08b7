"""The pure parts of the comparison of simulator and live pool: outcomes of a ledger, calibration, measures of error."""

from dataclasses import replace

import pytest

from benchmarks.simulator_fidelity.__main__ import rows
from benchmarks.simulator_fidelity.outcomes import Calibration, Outcome, compared, recorded_run, verdict
from benchmarks.simulator_fidelity.workload import (
    CONFIG,
    CONTROL,
    LEVELS,
    arrivals,
    calibration_arrivals,
    nominal_rates,
)
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.timing.recorded_times import recorded_times
from tests.support.control_ledger import JOB, ledger


def calibration(speed: float = 1.0) -> Calibration:
    return Calibration.of(recorded_times(ledger(speed)))


def test_a_ledger_says_when_jobs_ended_and_what_they_held() -> None:
    run = recorded_run(ledger())
    assert run.outcomes.keys() == {"a"}
    outcome = run.outcomes["a"]
    assert (outcome.submitted_s, outcome.deadline_s, outcome.met) == (100.0, 160.0, True)
    assert outcome.finished_s == pytest.approx(117.5, abs=0.1)
    assert outcome.gpu_seconds == pytest.approx(10 + 2 * 7.5, abs=0.2)
    assert [(each.at_s, each.placed.generation) for each in run.placements["a"]] == [(100.0, 1), (110.0, 2)]
    (unfinished,) = recorded_run(list(ledger())[:-1]).outcomes.values()
    assert (unfinished.finished_s, unfinished.met, unfinished.gpu_seconds) == (None, False, 0.0)


def test_a_calibration_has_costs_by_kind_and_fills_in_what_was_not_recorded() -> None:
    found = calibration(speed=0.9)
    assert found.changes.first_start == ResizeCost.flat(2.0)
    assert found.changes.grow.stop == ResizeCost((2,), (0.5,))
    assert found.rates[CONTROL] == {
        num: pytest.approx(0.9 * rate, rel=0.02) for num, rate in nominal_rates(CONTROL).items()
    }
    assert found.rates["steps-40ms"] == nominal_rates("steps-40ms")
    assert (CONTROL, 4) in found.assumed
    assert (CONTROL, 2) not in found.assumed


def test_a_run_without_a_control_job_calibrates_nothing() -> None:
    with pytest.raises(ValueError, match="control job"):
        Calibration.of(recorded_times(list(ledger())[:1]))


def test_recorded_placements_give_the_recorded_end() -> None:
    run = recorded_run(ledger())
    predicted = calibration().with_recorded_placements((JOB,), run)
    assert predicted["a"].finished_s == pytest.approx(run.outcomes["a"].finished_s, abs=0.1)
    slower = replace(calibration(), changes=replace(calibration().changes, first_start=ResizeCost.flat(5.0)))
    later = slower.with_recorded_placements((JOB,), run)["a"]
    assert later.finished_s == pytest.approx(117.5 + 1.5, abs=0.1)  # three seconds of one slot are 1.5 s of two
    assert later.gpu_seconds == pytest.approx(10 + 2 * 9.0, abs=0.2)
    stops = calibration().with_recorded_placements((JOB,), run, ResizeCost.flat(2.0))["a"].finished_s
    assert stops == pytest.approx(112.0 + (20 - 8) / 2, abs=0.1)  # it did not train from 110 to 112 s


def test_the_simulator_decides_for_itself_and_knows_the_live_settings() -> None:
    outcome = calibration().simulated((JOB,))["a"]
    assert outcome.finished_s is not None
    assert outcome.met
    impossible = replace(JOB, deadline_in_s=1.0)
    assert calibration().simulated((impossible,))["a"].finished_s is None


def test_a_control_job_of_another_speed_makes_a_run_void() -> None:
    assert calibration().control_change(ledger(speed=0.5)) == pytest.approx(-0.5, abs=0.02)
    assert calibration().control_change([]) is None
    assert [verdict(change)["void"] for change in (0.0, 0.02, -0.2, None)] == [False, False, True, True]


def test_errors_are_relative_to_live_completion_times() -> None:
    live = {
        "a": Outcome(submitted_s=0.0, finished_s=10.0, deadline_s=10.0, gpu_seconds=10.0),
        "b": Outcome(submitted_s=5.0, finished_s=25.0, gpu_seconds=30.0),
        "c": Outcome(submitted_s=6.0),
    }
    simulated = {
        "a": Outcome(submitted_s=100.0, finished_s=111.0, deadline_s=110.0, gpu_seconds=11.0),
        "b": Outcome(submitted_s=105.0, finished_s=121.0, gpu_seconds=25.0),
        "c": Outcome(submitted_s=106.0, finished_s=107.0, gpu_seconds=4.0),
    }
    found = compared(simulated, live)
    assert found.errors == {"a": pytest.approx(0.1), "b": pytest.approx(-0.2)}
    assert (found.mean, found.worst) == (pytest.approx(0.15), pytest.approx(0.2))
    assert found.p95 == pytest.approx(0.195)
    assert (found.met, found.other_fates) == ((0, 1), ("c",))
    assert found.gpu_seconds_error == pytest.approx(0.0)
    assert found.makespan_error == pytest.approx(21 / 25 - 1)
    with pytest.raises(ValueError, match="no job ended"):
        compared({}, live)


def test_calibration_and_test_have_other_jobs_and_each_seed_its_own() -> None:
    assert arrivals(1, 5) == arrivals(1, 5)
    first, second = arrivals(1, 5), arrivals(2, 5)
    assert first[0] == second[0]  # the control job
    assert not set(first[1:]) & set(second[1:])
    assert all(job.spec().configured_key in CONFIG.curves for job in first)
    shown = calibration_arrivals(1, 5)
    assert shown[: len(first)] == first
    assert [job.trace_job(nominal_rates(job.model_name)).curve.num_gpus_L for job in shown[-3:]] == [
        (n,) for n in LEVELS
    ]


def test_the_table_says_which_runs_are_void() -> None:
    numbers = {
        "mean": 0.1, "p95": 0.2, "worst": 0.3, "met": (1, 2), "gpu_seconds_error": 0.0, "makespan_error": 0.0,
        "other_fates": ["c"],
    }  # fmt: skip
    run = {
        "run": "test-0",
        "control_change": None,
        "void": True,
        "simulated": numbers,
        "placements": numbers,
        "stops": numbers,
    }
    shown = list(rows({"runs": [run], "live_against_live": [{"runs": ["test-0", "test-1"], **numbers}]}))
    assert shown[0].measured == "it did not train"
    assert all("test-0 (void)" in row.what for row in shown[:4])
    assert shown[1].measured == "10.0% / 20.0% / 30.0%"
    assert "jobs with another fate: 1" in shown[4].beside
