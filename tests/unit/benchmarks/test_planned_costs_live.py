"""Budgets of live pools: each pool plans with its own, and only promised jobs can be late."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.simulator_fidelity import planned_costs_live
from benchmarks.simulator_fidelity.planned_costs_live import BUDGETS, rows
from benchmarks.simulator_fidelity.workload import CONFIG, CONTROL, nominal_rates, tight_arrivals
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scheduler_view import resize_cost
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


def test_each_budget_is_run_with_the_margin_and_with_each_confidence_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = dict[str, PoolConfig]()

    def run(_jobs: object, file: Path, *, resume: bool, config: PoolConfig) -> None:
        assert not resume
        ran[file.stem] = config

    monkeypatch.setattr(planned_costs_live, "run_unless_kept", run)
    monkeypatch.setattr(planned_costs_live, "read_messages", lambda _: tuple(ledger()))
    planned_costs_live.main(out=tmp_path, jobs=2, repeats=2, confidence=[0.9, 0.99], as_json=True)
    assert len(ran) == 2 * 3 * 3
    assert {config.confidence for config in ran.values()} == {None, 0.9, 0.99}
    assert ran["2-1-margin"] == BUDGETS["a start as learned"]
    assert ran["1-2-confidence-0.99"] == replace(CONFIG, confidence=0.99)
    measured = json.loads((tmp_path / "planned_costs_live.json").read_text())["planned_costs_live"]
    assert measured[3] == {
        "seed": 1,
        "confidence": 0.9,
        "budget": "the stop of a switch",
        "asked": 3,
        "admitted": 1,
        "late": 0,
    }
    assert [row.measured for row in rows(measured)] == ["2, 0"] * 9


def test_the_runs_of_a_budget_are_added_up() -> None:
    measured = [
        {"seed": seed, "confidence": None, "budget": name, "asked": 10, "admitted": 5 + seed, "late": seed}
        for seed in (1, 2)
        for name in BUDGETS
    ]
    first, *_ = rows(measured)
    assert (first.measured, first.beside) == ("13, 3", "of 20; runs: 6 (1), 7 (2)")
