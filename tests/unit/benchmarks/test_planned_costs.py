"""Promises by the budget for a change: the budget decides who is admitted, and the same physics decide who is late."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scheduling.workloads import Case
from benchmarks.simulator_fidelity import planned_costs
from elasticflow.simulator.timing.overhead import reference_cost
from elasticflow.simulator.workload.workload import Workload
from tests.support.trace_jobs import job

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
NUM_GPUS = 1
TRAINING_S = 1000.0
STOP, START, START_AND_WAIT = (
    "the stop of a switch",
    "a whole start",
    "a start, and the wait until another job has left",
)


def measured(slack_s: float, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[int, dict[str, dict[str, int]]]:
    """Of a job alone on one GPU. slack_s: from its submission to its deadline, without the time that it trains.

    By factor of the reference cost and by budget, from the JSON object that the command writes.
    """
    case = Case(
        workload=Workload.of("one job", [job("a", int(TRAINING_S), 0.0, TRAINING_S + slack_s)]), published_gpus=NUM_GPUS
    )
    monkeypatch.setattr(planned_costs, "trace_cases", lambda *_: [case])
    monkeypatch.setattr(planned_costs, "generated_cases", lambda *_: [])
    file = folder / "planned_costs.json"
    planned_costs.main(traces=None, throughputs=None, as_json=True, out=file)
    return {each["factor"]: each["budgets"] for each in json.loads(file.read_text())["planned_costs"]}


def counts(numbers: dict[str, int]) -> tuple[int, int, int]:
    return numbers["admitted"], numbers["met"], numbers["late"]


def test_a_budget_without_the_start_promises_what_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_s = reference_cost(NUM_GPUS).seconds_C[0]
    found = measured(start_s / 2, monkeypatch, tmp_path)
    assert {name: counts(numbers) for name, numbers in found[1].items()} == {
        STOP: (1, 0, 1),
        START: (0, 0, 0),
        START_AND_WAIT: (0, 0, 0),
    }


def test_a_budget_of_the_start_promises_what_is_kept_and_a_larger_one_less(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start_s = reference_cost(NUM_GPUS).seconds_C[0]
    found = measured(1.5 * start_s, monkeypatch, tmp_path)
    assert {name: counts(numbers) for name, numbers in found[1].items()} == {
        STOP: (1, 1, 0),
        START: (1, 1, 0),
        START_AND_WAIT: (0, 0, 0),
    }
    assert counts(found[10][STOP]) == (1, 0, 1), "its start takes ten times as long"
    assert counts(found[10][START]) == (0, 0, 0)


def test_the_table_has_a_row_for_each_budget_and_the_page_has_the_recorded_numbers() -> None:
    recorded: list[dict[str, Any]] = json.loads((RESULTS / "planned_costs.json").read_text())["planned_costs"]
    rows = list(planned_costs.rows(recorded))
    assert len(rows) == 3 * len(recorded)
    first = recorded[0]["budgets"][STOP]
    assert rows[0].measured == f"{first['admitted']}, {first['late']}"
    page = (RESULTS / "simulator_fidelity.md").read_text()
    for case in recorded:
        cost = {1: "reference", 10: "ten times"}[case["factor"]]
        cells = [f"{case['budgets'][name]['admitted']} ({case['budgets'][name]['late']})" for name in case["budgets"]]
        assert f"| {case['workload']} | {case['jobs']} | {cost} | {' | '.join(cells)} |" in page
