"""The benchmark of GPU types measures what it reports, here with few splits; no time is asserted."""

from benchmarks.heterogeneous.solver import measure_solver, rows


def test_splits_are_timed_and_as_short_as_by_linear_programs() -> None:
    measured = measure_solver(num_splits=2, num_checked=20, seed=1)
    assert measured["checked"]["equal"] == measured["checked"]["splits"] == 20
    assert {group["types"] for group in measured["groups"]} == {1, 2, 3, 4}
    assert all(group["cpu_us"]["max"] >= group["cpu_us"]["p50"] > 0 for group in measured["groups"])
    assert len(list(rows(measured))) == len(measured["groups"]) + 1
