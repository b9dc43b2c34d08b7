"""The scheduler's benchmark runs: each part with little work, counts that must agree, no time asserted."""

from pathlib import Path

import pytest

from benchmarks.scheduling.decisions import measure_cycle, measure_decisions
from benchmarks.scheduling.failures import measure_failures
from benchmarks.scheduling.quality import Plan, measure_quality, totals
from benchmarks.scheduling.report import sheets
from benchmarks.scheduling.simulations import measure_simulation
from benchmarks.scheduling.workloads import Case, cluster_of, generated_cases, tables, trace_cases
from simulator.workload.bundled import bundled_throughputs, bundled_trace
from simulator.workload.throughputs import Throughputs


@pytest.fixture
def known() -> Throughputs:
    return tables(bundled_throughputs())


@pytest.fixture
def small(known: Throughputs) -> Case:
    """The first jobs of the bundled trace `small`."""
    traces = trace_cases(bundled_trace("small").parent, known)
    return next(case for case in traces if case.name == "small").first(20)


def test_a_score_stands_beside_its_rulers_and_its_gap_adds_up(small: Case) -> None:
    noted = list[str]()
    plan = Plan(cases=(small,), scales=(8,), baselines=("edf", "tiresias"), moves=100)
    (row,) = rows = measure_quality(plan, 1, noted.append)
    assert row["num_gpus"] == 8
    assert len(noted) == 1
    assert set(row["ours"]) == {"selective", "first-come"}
    assert row["best_baseline_met"] == max(score["met"] for score in row["baselines"].values())
    for score in row["ours"].values():
        assert score["late"] == score["certificate_failures"] == 0, score["wrong"]
        assert 0 < score["met"] <= row["reachable"] <= row["bound"] + 1e-6
        gap = row["nobody_reaches"] + score["hindsight_wins"]
        assert gap == pytest.approx(row["bound"] - score["met"])
    assert totals(rows)["selective"]["met"] == row["ours"]["selective"]["met"]
    shown = list(sheets({"machine": "here", "quality": {"rows": rows, "totals": totals(rows)}}))
    assert all(len(line) == len(sheet.columns) for sheet in shown for line in sheet.rows)


def test_a_simulation_is_the_same_with_and_without_checks(small: Case) -> None:
    unchecked, checked = measure_simulation(small)
    assert not unchecked["verified"]
    assert checked["certificate_failures"] == 0
    assert (unchecked["met"], unchecked["messages"]) == (checked["met"], checked["messages"])


def test_decisions_are_asked_of_pools_as_loaded_as_they_say(known: Throughputs) -> None:
    decisions = measure_decisions(known, num_gpus=32, num_live=10, count=4)
    for load in ("with_room", "saturated"):
        assert decisions[load]["live_jobs"] >= 8
        assert decisions[load]["newcomers"] == 4
    assert decisions["with_room"]["promised_next_hour"] < decisions["saturated"]["promised_next_hour"]
    cycle = measure_cycle(known, num_gpus=32, num_live=10, count=3)
    assert cycle["cycles"] == 3
    assert cycle["cpu_ms"]["whole"]["p50"] >= cycle["cpu_ms"]["placement"]["p50"]
    shown = list(sheets({"machine": "here", "decisions": decisions, "cycle": cycle}))
    assert all(len(line) == len(sheet.columns) for sheet in shown for line in sheet.rows)


def test_lives_with_failures_are_counted(known: Throughputs) -> None:
    lives = measure_failures(known, 2, 1)
    assert lives["jobs"] == 200
    assert lives["outages"] > 0
    assert not lives["runs_with_a_broken_promise"]
    assert not lives["runs_with_a_wrong_certificate"]
    assert lives["certificates_checked"] > 0


def test_generated_workloads_do_not_hang_on_published_traces(known: Throughputs) -> None:
    cases = generated_cases(known)
    assert len({case.name for case in cases}) == len(cases) >= 4
    assert all(cluster_of(case.published_gpus // scale).num_gpus for case in cases for scale in (1, 32))


def test_a_folder_without_traces_is_refused(known: Throughputs, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="holds no trace"):
        trace_cases(tmp_path, known)
