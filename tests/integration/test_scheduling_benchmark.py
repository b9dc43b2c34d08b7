"""The benchmark of the scheduler runs, each part with little work; the counts must agree. No time is asserted."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scheduling.__main__ import Results
from benchmarks.scheduling.cells import BY_QUOTES, measured
from benchmarks.scheduling.decision_cost import WHAT, measured_size
from benchmarks.scheduling.decisions import (
    LOOSE,
    POOLS,
    measure_answers,
    measure_cycle,
    measure_decisions,
    measure_simulation,
    recipe_of,
)
from benchmarks.scheduling.pools import laid_out_pool
from benchmarks.scheduling.prices_over_a_day import LOOK, draw, observed
from benchmarks.scheduling.quality import Plan, gap_of, measure_failures, measure_quality, totals
from benchmarks.scheduling.relaxations import measure_relaxations
from benchmarks.scheduling.report import sheets
from benchmarks.scheduling.workloads import GENERATED, Case, cluster_of, generated_cases, tables, trace_cases
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.workload.generator import generate
from elasticflow.simulator.workload.throughput_tables import Throughputs
from elasticflow.simulator.workload.workload import bundled_throughputs, bundled_trace


@pytest.fixture
def known() -> Throughputs:
    return tables(bundled_throughputs())


@pytest.fixture
def small(known: Throughputs) -> Case:
    """The first jobs of the bundled trace `small`."""
    traces = trace_cases(bundled_trace("small").parent, known)
    return next(case for case in traces if case.name == "small").first(20)


def test_the_cost_of_a_decision_is_measured_in_one_size(known: Throughputs) -> None:
    row = measured_size(known, num_gpus=16, num_live=8, seconds=0.0)
    assert (row["num_gpus"], row["live_jobs"], row["decisions"]) == (16, 8, 5)
    assert set(row["cpu_ms"]) == set(WHAT)


def test_cells_behind_a_front_are_compared_with_one_pool(small: Case) -> None:
    row = measured(small, [4, 4], BY_QUOTES)
    assert (row["jobs"], row["late"], row["admitted"]) == (20, 0, sum(row["admitted_by_cell"]))
    assert 0 < row["met"] <= row["admitted"]
    assert set(row["cpu_ms"]) == {"quote", "submission"}


def test_a_score_is_compared_with_its_bounds_and_its_gap_adds_up(small: Case) -> None:
    plan = Plan(cases=(small,), scales=(8,), baselines=("edf", "tiresias"), moves=100)
    (row,) = rows = list(measure_quality(plan, 1))
    assert row["num_gpus"] == 8
    assert set(row["ours"]) == {"selective", "first-come"}
    assert row["best_baseline_met"] == max(score["met"] for score in row["baselines"].values())
    for policy, score in row["ours"].items():
        assert score["late"] == score["certificate_failures"] == 0, score["wrong"]
        assert 0 < score["met"] <= row["hindsight"] <= row["bound"] + 1e-6
        gap = row["beyond_hindsight"] + score["won_by_hindsight"]
        assert gap == pytest.approx(row["bound"] - score["met"]) == pytest.approx(sum(gap_of(row, policy)))
        assert min(gap_of(row, policy)) >= 0
    assert totals(rows)["selective"]["met"] == row["ours"]["selective"]["met"]
    shown = list(sheets({"machine": "here", "quality": {"rows": rows, "totals": totals(rows)}}))
    assert all(len(line) == len(sheet.columns) for sheet in shown for line in sheet.rows)


def test_an_easier_deadline_is_not_rejected(known: Throughputs) -> None:
    measured = measure_relaxations(known, 3, 25)
    for found in measured["policies"]:
        assert {law["relaxed"]: law["refused"] for law in found["laws"]} == {
            "deadline": 0,
            "work": 0,
            "GPUs": 0,
        }
        assert all(law["asked"] == 3 * found["promised"] > 0 for law in found["laws"]), found["policy"]
    (shown,) = sheets({"machine": "here", "relaxations": measured})
    assert all(len(line) == len(shown.columns) for line in shown.rows)


def test_only_missing_rows_are_measured(small: Case) -> None:
    plan = Plan(cases=(small,), scales=(8, 16), moves=0)
    known = [{**row, "bound": "as it was"} for row in measure_quality(replace(plan, scales=(8,)), 1)]
    again, new = measure_quality(plan, 1, known)
    assert (again["num_gpus"], again["bound"]) == (8, "as it was")
    assert (new["num_gpus"], new["bound"]) != (8, "as it was")
    (more,) = measure_quality(replace(plan, scales=(8,), baselines=("edf",)), 1, known)
    assert more["baselines"].keys() == {"edf"}, "a row without it does not do"
    (other,) = measure_quality(replace(plan, scales=(8,), moves=10), 1, known)
    assert other["hindsight_found"] is not None


def test_each_result_is_saved_at_once_and_an_interrupted_run_continues(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    first = Results(file, resume=True, quick=True)
    with suppress(KeyboardInterrupt), first.counted("cycle"):
        first.keep("decisions", {"num_gpus": 8})
        raise KeyboardInterrupt
    again = Results(file, resume=True, quick=True)
    assert again.values["decisions"] == {"num_gpus": 8}
    assert again.values["costs"]["cycle"].keys() == {"workers", "cpu_s", "wall_s"}
    assert "decisions" not in Results(file, resume=False, quick=True).values
    with pytest.raises(BadSettings, match="other settings: quick"):
        Results(file, resume=True, quick=False)


def test_a_simulation_is_the_same_with_and_without_checks(small: Case) -> None:
    unchecked, checked = measure_simulation(small)
    assert not unchecked["verified"]
    assert checked["certificate_failures"] == 0
    assert (unchecked["met"], unchecked["messages"]) == (checked["met"], checked["messages"])


def test_decisions_are_measured_on_pools_of_the_stated_load(known: Throughputs) -> None:
    decisions = measure_decisions(known, num_gpus=32, num_live=10, count=4)
    for load, (_, num_ends) in POOLS.items():
        assert decisions[load]["nodes_with_an_end"] == num_ends
        assert decisions[load]["live_jobs"] >= 8
        assert decisions[load]["arriving_jobs"] == 4
    assert decisions["with_room"]["promised_next_hour"] < decisions["saturated"]["promised_next_hour"]
    (pool,) = decisions["answers"] = measure_answers(known, sizes=[20], count=4)
    assert pool["live_jobs"] >= 8
    assert pool["answers"]["all"] == pool["answers"]["plain pass"] == 4
    assert sum(pool["answers"].values()) == 3 * 4, "each decision has one answer"
    cycle = measure_cycle(known, num_gpus=32, num_live=10, count=3)
    assert cycle["cycles"] == 3
    for clock in ("cpu_ms", "wall_ms"):
        assert cycle[clock]["whole"]["p50"] >= cycle[clock]["placement"]["p50"]
    shown = list(sheets({"machine": "here", "decisions": decisions, "cycle": cycle}))
    assert all(len(line) == len(sheet.columns) for sheet in shown for line in sheet.rows)


def test_a_generated_pool_keeps_all_promises_on_disjoint_gpus(known: Throughputs) -> None:
    state, now_s = laid_out_pool(recipe_of(256, 150, LOOSE), known, 150)
    jobs = state.live_jobs.values()
    assert len(jobs) == 150
    assert planned_pool(state, now_s).plan.late == ()
    training = [job for job in jobs if job.training]
    assert 0 < len(training) < 150
    assert all(job.training for job in jobs if job.gpus)
    assert not any(job.stopping for job in jobs)
    held = [gpu for job in training for gpu in job.gpus]
    assert len(held) == len(set(held)) > 0.9 * 256
    for policy in planners().values():
        assert policy.decide(state, (), now_s) == (), "it is at rest"


def test_simulated_runs_with_failures_are_counted(known: Throughputs) -> None:
    lives = measure_failures(known, 2, 1)
    assert lives["jobs"] == 200
    assert lives["outages"] > 0
    assert not lives["runs_with_a_broken_promise"]
    assert not lives["runs_with_a_wrong_certificate"]
    assert lives["certificates_checked"] > 0


def test_generated_workloads_need_no_published_traces(known: Throughputs) -> None:
    cases = generated_cases(known)
    assert len({case.name for case in cases}) == len(cases) >= 4
    assert all(cluster_of(case.published_gpus // scale).num_gpus for case in cases for scale in (1, 32))


def test_a_folder_without_traces_is_an_error(known: Throughputs, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="holds no trace"):
        trace_cases(tmp_path, known)


def test_the_picture_of_prices_shows_every_answer_of_the_day(tmp_path: Path, known: Throughputs) -> None:
    recipe, seed = GENERATED["generated diurnal"]
    seen = observed(generate(recipe, known, seed))
    assert {"admitted", "price"} <= {answer for _, _, answer in seen.answers} <= set(LOOK)
    assert len(seen.prices) == len(seen.answers) > 50
    draw(seen, tmp_path / "prices.png")
    assert (tmp_path / "prices.png").read_bytes().startswith(b"\x89PNG")
