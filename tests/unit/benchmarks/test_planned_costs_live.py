"""Budgets of live pools: each pool plans with its own, and only promised jobs can be late."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from benchmarks.report import Measured
from benchmarks.simulator_fidelity import planned_costs_live
from benchmarks.simulator_fidelity.planned_costs_live import BUDGETS, rows
from benchmarks.simulator_fidelity.workload import CONFIG, CONTROL, nominal_rates, tight_arrivals
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scheduler_view import resize_cost
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState
from tests.support.control_ledger import ledger


def test_a_pool_that_learned_a_start_of_a_second_plans_with_its_budget() -> None:
    states = {name: replace(PoolState(), config=config, start_cost_s=1.0) for name, config in BUDGETS.items()}
    assert {name: resize_cost(state).seconds(2) for name, state in states.items()} == {
        "the stop of a switch": 0.15,
        "a start as learned": 1.0,
        "a start, at least 2 s": 2.0,
    }


def test_competing_jobs_have_deadlines_near_their_time_on_one_slot() -> None:
    control, *jobs = tight_arrivals(1, 20)
    assert control.job_id == CONTROL
    for job in jobs:
        alone_s = job.num_iterations / nominal_rates(job.model_name)[1]
        assert job.deadline_in_s is not None
        assert 0.6 * alone_s <= job.deadline_in_s - 1.0 <= 2.0 * alone_s
    assert jobs == list(tight_arrivals(1, 20)[1:])


class FakePool:
    """Jobs of these runs do not run: each run leaves the same ledger, with other speeds of its control job."""

    def __init__(self, speeds: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran = dict[str, PoolConfig]()
        self._speeds = speeds
        monkeypatch.setattr(planned_costs_live, "run_unless_kept", self.run)
        monkeypatch.setattr(planned_costs_live, "read_messages", self.read)

    def run(self, _jobs: object, file: Path, *, resume: bool, config: PoolConfig = CONFIG) -> None:
        if not resume or not file.exists():
            self.ran[file.stem] = config
            file.touch()

    def read(self, file: Path) -> tuple[LedgerMessage, ...]:
        return tuple(ledger(self._speeds.get(file.stem, 1.0)))


def measure(folder: Path, exit_code: int, confidence: list[float] | None = None, repeats: int = 2) -> list[Measured]:
    with pytest.raises(typer.Exit) as ended:
        planned_costs_live.main(out=folder, jobs=2, repeats=repeats, confidence=confidence, resume=True, as_json=True)
    assert ended.value.exit_code == exit_code
    return json.loads((folder / "planned_costs_live.json").read_text())["planned_costs_live"]


def test_each_budget_is_run_with_the_margin_and_with_each_confidence_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = FakePool({}, monkeypatch)
    measured = measure(tmp_path, 0, [0.9, 0.99])
    assert pool.ran.pop("control-alone") == CONFIG
    assert len(pool.ran) == 2 * 3 * 3
    assert {config.confidence for config in pool.ran.values()} == {None, 0.9, 0.99}
    assert pool.ran["2-2jobs-1-margin"] == BUDGETS["a start as learned"]
    assert pool.ran["1-2jobs-2-confidence-0.99"] == replace(CONFIG, confidence=0.99)
    assert measured[3] == {
        "seed": 1,
        "jobs": 2,
        "confidence": 0.9,
        "budget": "the stop of a switch",
        "control_change": 0.0,
        "void": False,
        "asked": 3,
        "admitted": 1,
        "late": 0,
    }
    assert [row.measured for row in rows(measured)][:9] == ["2, 0"] * 9


def test_a_run_with_another_speed_of_the_control_job_has_no_result_and_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = FakePool({"1-2jobs-1-margin": 0.9}, monkeypatch)
    void = measure(tmp_path, 1, repeats=1)[1]
    assert void.pop("control_change") == pytest.approx(-0.1, abs=0.01)
    assert void == {"seed": 1, "jobs": 2, "confidence": None, "budget": "a start as learned", "void": True}
    pool.ran.clear()
    assert [run["void"] for run in measure(tmp_path, 1, repeats=1)] == [False, True, False]
    assert pool.ran.keys() == {"1-2jobs-1-margin"}
    assert (tmp_path / "1-2jobs-1-margin.void.eflow").exists()


def test_a_run_in_which_the_control_job_did_not_train_is_void(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pool = FakePool({}, monkeypatch)
    monkeypatch.setattr(
        planned_costs_live, "read_messages", lambda file: pool.read(file) if file.stem == "control-alone" else ()
    )
    measured = measure(tmp_path, 1, repeats=1)
    assert all(run["void"] for run in measured)
    *_, last = rows(measured)
    assert last[:2] == (
        "speed of the control job in workload 1, a start, at least 2 s, margin (void)",
        "it did not train",
    )


def test_void_runs_are_not_added_up() -> None:
    run = {"seed": 1, "confidence": None, "control_change": 0.01, "void": False, "asked": 10, "admitted": 5, "late": 1}
    void = {"seed": 2, "confidence": None, "control_change": -0.2, "void": True}
    measured = [each | {"budget": name} for each in (run, void) for name in BUDGETS]
    first, *_ = rows(measured)
    assert (first.measured, first.beside) == ("5, 1", "of 10; runs: 5 (1), void")


def test_the_runs_of_a_budget_are_added_up() -> None:
    measured = [
        {
            "seed": seed,
            "confidence": None,
            "budget": name,
            "control_change": 0.0,
            "void": False,
            "asked": 10,
            "admitted": 5 + seed,
            "late": seed,
        }
        for seed in (1, 2)
        for name in BUDGETS
    ]
    first, *_ = rows(measured)
    assert (first.measured, first.beside) == ("13, 3", "of 20; runs: 6 (1), 7 (2)")
