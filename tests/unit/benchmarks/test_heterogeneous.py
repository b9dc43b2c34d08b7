"""The benchmark of GPU types measures what it reports, here with few splits and jobs; no time is asserted."""

from benchmarks.heterogeneous.completion_times import MIX_EFFICIENCIES, measure_completion_times
from benchmarks.heterogeneous.completion_times import rows as completion_rows
from benchmarks.heterogeneous.solver import measure_solver, rows
from elasticflow.simulator.workload.typed_pool import typed_pool


def test_splits_are_timed_and_as_short_as_by_linear_programs() -> None:
    measured = measure_solver(num_splits=2, num_checked=20, seed=1)
    assert measured["checked"]["equal"] == measured["checked"]["splits"] == 20
    assert {group["types"] for group in measured["groups"]} == {1, 2, 3, 4}
    assert all(group["cpu_us"]["max"] >= group["cpu_us"]["p50"] > 0 for group in measured["groups"])
    assert len(list(rows(measured))) == len(measured["groups"]) + 1


def test_completion_times_are_reported_for_each_rate_with_and_without_mixed_types() -> None:
    measured = measure_completion_times(typed_pool("4xV100,8xP100,16xK80"), num_jobs=6)
    for by_rate in measured["completion"].values():
        for runs in by_rate.values():
            assert {name: len(outcomes) for name, outcomes in runs.items()} == dict.fromkeys(MIX_EFFICIENCIES, 3)
    first = measured["completion"]["elastic"]["1"]
    one_type, mixed = (first[name][0]["mean_completion_s"] for name in ("one type", "mixed"))
    assert mixed < one_type
    assert len(list(completion_rows(measured))) == 2 * len(measured["completion"]["elastic"]) + 2
