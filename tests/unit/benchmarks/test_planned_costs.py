"""Promises by the budget for a change: the budget decides who is admitted, and the same physics decide who is late."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regressions.pages import RESULTS
from benchmarks.scheduling.workloads import Case
from benchmarks.simulator_fidelity import planned_costs
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.workload.workload import Workload
from tests.support.trace_jobs import job

NUM_GPUS = 1
TRAINING_S = 1000.0
STOP, START, START_AND_WAIT = (
    "the stop of a switch",
    "a whole start",
    "a start, and the wait until another job has left",
)


def measured(
    slack_s: float, monkeypatch: pytest.MonkeyPatch, folder: Path, speed_noise: float | None = None
) -> list[dict[str, Any]]:
    """Of a job alone on one GPU. slack_s: from its submission to its deadline, without the time that it trains.

    What the command writes as a JSON object.
    """
    case = Case(
        workload=Workload.of("one job", [job("a", int(TRAINING_S), 0.0, TRAINING_S + slack_s)]), published_gpus=NUM_GPUS
    )
    monkeypatch.setattr(planned_costs, "trace_cases", lambda *_: [case])
    monkeypatch.setattr(planned_costs, "generated_cases", lambda *_: [])
    file = folder / "planned_costs.json"
    planned_costs.main(speed_noise=speed_noise, seeds=2, as_json=True, out=file)
    return json.loads(file.read_text())["planned_costs"]


def by_factor(found: list[dict[str, Any]]) -> dict[int, dict[str, dict[str, int]]]:
    """By factor of the reference cost and by budget."""
    return {each["factor"]: each["budgets"] for each in found}


def counts(numbers: dict[str, int]) -> tuple[int, int, int]:
    return numbers["admitted"], numbers["met"], numbers["late"]


def test_a_budget_without_the_start_promises_what_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_s = reference_cost(NUM_GPUS).seconds_C[0]
    found = by_factor(measured(start_s / 2, monkeypatch, tmp_path))
    assert {name: counts(numbers) for name, numbers in found[1].items()} == {
        STOP: (1, 0, 1),
        START: (0, 0, 0),
        START_AND_WAIT: (0, 0, 0),
    }


def test_a_budget_of_the_start_promises_what_is_kept_and_a_larger_one_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_s = reference_cost(NUM_GPUS).seconds_C[0]
    found = by_factor(measured(1.5 * start_s, monkeypatch, tmp_path))
    assert {name: counts(numbers) for name, numbers in found[1].items()} == {
        STOP: (1, 1, 0),
        START: (1, 1, 0),
        START_AND_WAIT: (0, 0, 0),
    }
    assert counts(found[10][STOP]) == (1, 0, 1), "its start takes ten times as long"
    assert counts(found[10][START]) == (0, 0, 0)


def test_a_promise_with_a_confidence_counts_on_less_speed_whatever_the_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for_speeds_s = 0.2 * TRAINING_S  # enough for 0.9, which counts on 0.88 of the curve, not for 0.99 with its 0.79
    found = [run for run in measured(for_speeds_s, monkeypatch, tmp_path, speed_noise=0.1) if run["factor"] == 1]
    settings = [(None, 1), (None, 2), (0.9, 1), (0.9, 2), (0.99, 1), (0.99, 2)]
    assert [(run["confidence"], run["seed"]) for run in found] == settings
    for run in found:
        admitted = [run["budgets"][budget]["admitted"] for budget in planned_costs.BUDGETS]
        assert admitted == [int(run["confidence"] != 0.99)] * 3


def test_only_the_first_jobs_of_each_workload_may_be_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jobs = [job(name, 1, 0.0, TRAINING_S) for name in ("a", "b", "c")]
    case = Case(workload=Workload.of("three", jobs), published_gpus=NUM_GPUS)
    monkeypatch.setattr(planned_costs, "trace_cases", lambda *_: [case])
    monkeypatch.setattr(planned_costs, "generated_cases", lambda *_: [])
    planned_costs.main(first=2, as_json=True, out=tmp_path / "costs.json")
    found = json.loads((tmp_path / "costs.json").read_text())["planned_costs"]
    assert [run["jobs"] for run in found] == [2, 2]


def test_the_table_adds_up_the_seeds_and_then_the_workloads() -> None:
    def run(workload: str, confidence: float | None, admitted: int, late: int) -> dict[str, Any]:
        numbers = {"admitted": admitted, "met": admitted - late, "late": late}
        budgets = dict.fromkeys(planned_costs.BUDGETS, numbers)
        return {"workload": workload, "jobs": 10, "factor": 1, "confidence": confidence, "budgets": budgets}

    rows = list(
        planned_costs.rows([run("a", None, 9, 2), run("a", None, 8, 1), run("a", 0.9, 7, 0), run("b", 0.9, 1, 0)])
    )
    shown = [(row.what.partition(":")[0], row.measured.partition(";")[0], row.beside) for row in rows]
    assert shown == [
        ("a, 1 x the reference cost", "17, 14, 3", "of 20 jobs"),
        ("a, 1 x the reference cost, confidence 0.9", "7, 7, 0", "of 10 jobs"),
        ("b, 1 x the reference cost, confidence 0.9", "1, 1, 0", "of 10 jobs"),
        ("all, 1 x the reference cost", "17, 14, 3", "of 20 jobs"),
        ("all, 1 x the reference cost, confidence 0.9", "8, 8, 0", "of 20 jobs"),
    ]


def test_the_page_has_the_recorded_numbers() -> None:
    recorded: list[dict[str, Any]] = json.loads((RESULTS / "planned_costs.json").read_text())["planned_costs"]
    page = (RESULTS / "simulator_fidelity.md").read_text()
    for case in recorded:
        cost = {1: "reference", 10: "ten times"}[case["factor"]]
        cells = [f"{case['budgets'][name]['admitted']} ({case['budgets'][name]['late']})" for name in case["budgets"]]
        assert f"| {case['workload']} | {case['jobs']} | {cost} | {' | '.join(cells)} |" in page


def test_the_page_has_the_recorded_sums_of_each_confidence() -> None:
    recorded: list[dict[str, Any]] = json.loads((RESULTS / "planned_costs_confidence.json").read_text())[
        "planned_costs"
    ]
    page = (RESULTS / "simulator_fidelity.md").read_text()
    for factor, confidence in product((1, 10), planned_costs.CONFIDENCES):
        runs = [run for run in recorded if (run["factor"], run["confidence"]) == (factor, confidence)]
        assert len({run["seed"] for run in runs}) > 1
        cells = [", ".join(map(str, planned_costs.added_up(runs, budget))) for budget in planned_costs.BUDGETS]
        cost = {1: "reference", 10: "ten times"}[factor]
        assert f"| {cost} | {confidence or 'none'} | {' | '.join(cells)} |" in page
