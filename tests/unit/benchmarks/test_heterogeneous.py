"""The benchmark of GPU types: its rows, what its recorded results must say, and short runs. No time is asserted."""

import json
from typing import Any

import pytest

from benchmarks.heterogeneous.completion_times import MIX_EFFICIENCIES, OWN, measure_completion_times
from benchmarks.heterogeneous.completion_times import rows as completion_rows
from benchmarks.heterogeneous.deadlines import (
    LOADS,
    SPEEDS,
    deadline_rows,
    measure_deadlines,
    measure_decision_time,
    measure_one_type,
    measure_published_traces,
    one_type_rows,
    trace_rows,
)
from benchmarks.heterogeneous.deadlines import decision_rows as decision_rows
from benchmarks.heterogeneous.solver import measure_solver, rows
from benchmarks.regressions.pages import RESULTS
from elasticflow.simulator.workload.workload import typed_pool

NIGHTLY = pytest.mark.nightly("it runs a benchmark of a quarter of a minute; the recorded results have the same checks")


def recorded(name: str, measured: str) -> Any:
    return json.loads((RESULTS / f"heterogeneous_{name}.json").read_text())[measured]


def test_splits_are_timed_and_as_short_as_by_linear_programs() -> None:
    measured = measure_solver(num_splits=2, num_checked=20, seed=1)
    assert measured["checked"]["equal"] == measured["checked"]["splits"] == 20
    assert {group["types"] for group in measured["groups"]} == {1, 2, 3, 4}
    assert all(group["cpu_us"]["max"] >= group["cpu_us"]["p50"] > 0 for group in measured["groups"])
    assert len(list(rows(measured))) == len(measured["groups"]) + 1


def assert_completion_times(measured: dict[str, Any]) -> None:
    for by_rate in measured["completion"].values():
        for runs in by_rate.values():
            forms = ("{}", "{}, short rounds", OWN)
            names = [form.format(name) for form in forms for name in MIX_EFFICIENCIES]
            assert {name: len(outcomes) for name, outcomes in runs.items()} == dict.fromkeys(names, 3)
    first = measured["completion"]["elastic"]["1"]
    one_type, mixed = (first[name][0]["mean_completion_s"] for name in ("one type", "mixed"))
    assert mixed < one_type
    assert first["one type, short rounds"][0]["mean_completion_s"] < one_type
    own = {name: first[OWN.format(name)][0]["mean_completion_s"] for name in MIX_EFFICIENCIES}
    assert own["mixed at 0.9"] < own["mixed"] < own["one type"]
    own_runs = [run for runs in measured["own_deadlines"].values() for run in runs]
    assert all(by_type["late"] == 0 for run in own_runs for by_type in run["by_type"].values())
    assert len(list(completion_rows(measured))) == 8 * len(measured["completion"]["elastic"]) + 5


def test_recorded_completion_times_have_each_rate_with_and_without_mixed_types() -> None:
    assert_completion_times(recorded("completion", "completion_times"))


@NIGHTLY
def test_completion_times_are_reported_for_each_rate_with_and_without_mixed_types() -> None:
    measured = measure_completion_times(typed_pool("4xV100,8xP100,16xK80"), num_jobs=6, first_seed=0)
    assert measured["seeds"] == [0, 1, 2]
    assert_completion_times(measured)


def assert_deadlines(measured: dict[str, Any]) -> None:
    cases = measured["cases"]
    assert {case["policy"] for case in cases} == {"selective", "first-come"}
    assert all(0 <= case["met"] <= case["bound"] + 1e-6 for case in cases)
    assert all(0 < case["hindsight"] <= case["feasible_on_one_type"] <= case["feasible_alone"] for case in cases)
    assert all(set(case["alone"]) < {"V100", "P100", "K80"} for case in cases)
    assert all(case["late"] == case["certificate_failures"] == 0 for case in cases)
    assert len(list(deadline_rows(measured))) == 10


def test_recorded_deadlines_stand_beside_the_bound_and_each_type_alone() -> None:
    assert_deadlines(recorded("deadlines", "deadlines"))


@NIGHTLY
def test_deadlines_stand_beside_the_bound_and_each_type_alone() -> None:
    assert_deadlines(measure_deadlines(share_of_cases=0.08, num_jobs=8))


def assert_published_traces(measured: dict[str, Any]) -> None:
    assert all(0 <= case["met"] <= case["bound"] + 1e-6 for case in measured["cases"])
    assert all(case["late"] == case["certificate_failures"] == 0 for case in measured["cases"])
    assert len(list(trace_rows(measured))) == len(measured["cases"]) + 8


def test_recorded_published_traces_stand_beside_each_type_alone() -> None:
    assert_published_traces(recorded("published_traces", "published_traces"))


@NIGHTLY
def test_published_or_bundled_traces_stand_beside_each_type_alone() -> None:
    assert_published_traces(measure_published_traces(max_jobs=6))


def assert_same_decisions_with_one_type(measured: dict[str, Any]) -> None:
    assert (measured["runs"], measured["differing_runs"]) == (8, 0)
    assert measured["decisions"] > 1000
    assert [row.measured for row in one_type_rows(measured)] == ["0"]


def test_recorded_decisions_are_those_of_one_named_type() -> None:
    assert_same_decisions_with_one_type(recorded("one_type", "one_type"))


@NIGHTLY
def test_one_named_type_is_compared_decision_by_decision() -> None:
    assert_same_decisions_with_one_type(measure_one_type(num_nodes=1))


def test_decisions_are_timed_on_four_types() -> None:
    measured = measure_decision_time(num_gpus=32, num_live=10, count=3)
    assert measured.keys() == LOADS.keys()
    for numbers in measured.values():
        assert set(numbers["live_jobs_by_type"]) <= set(SPEEDS)
        assert numbers["cpu_ms"]["admission"]["max"] > 0
    assert len(list(decision_rows(measured))) == 6
