"""`eflow simulate compare`: several policies on one page, with a file of the numbers."""

import csv
import html
import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.simulator.__main__ import app
from elasticflow.simulator.report.figures import (
    BEST_EFFORT_SEED,
    RunMatrix,
    Runner,
    due_after,
    efficiencies,
    mixed,
    mixes,
)
from elasticflow.simulator.workload.generator import Recipe, generate
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace, write_trace
from elasticflow.simulator.workload.workload import (
    ClusterShape,
    Workload,
    bundled_throughputs,
    bundled_trace,
    throughputs_by_type,
)
from tests.support.interrupting import interrupt_at


def small(num_jobs: int = 25) -> Workload:
    workload = read_trace(bundled_trace("small"), read_throughputs(bundled_throughputs()))
    return Workload.of("few", workload.jobs[:num_jobs])


def compare(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["simulate", "compare", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_one_page_with_all_figures_and_a_file_of_all_numbers(tmp_path: Path) -> None:
    trace, folder = tmp_path / "few.csv", tmp_path / "report"
    write_trace(small(), trace)
    policies = ("selective", "edf", "gandiva")
    chosen = [word for policy in policies for word in ("--policy", policy)]
    where = ("--nodes", "1", "--nodes", "2", "--bound", "--out", str(folder))
    status, said, _ = compare("--trace", str(trace), *chosen, *where)
    assert status == 0
    assert said.strip() == str(folder / "report.html")
    page = (folder / "report.html").read_text()
    titles = [html.unescape(title) for title in re.findall(r"<h2>(.*?)</h2>", page)]
    assert [title.split(".")[0] for title in titles] == [f"Figure {n}" for n in (7, 8, 8, 9, 10, 11)]
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert len(pictures) == len(titles)
    assert all(len(picture) < 400_000 for picture in pictures)  # 300 kB, in base64
    assert 'src="http' not in page
    with (folder / "numbers.csv").open(newline="") as opened:
        runs = list(csv.DictReader(opened))
    whole = [run for run in runs if run["trace"] == "few"]
    assert {(run["policy"], run["num_gpus"]) for run in whole} >= {(p, n) for p in policies for n in ("8", "16")}
    ours = next(run for run in whole if run["policy"] == "selective" and run["num_gpus"] == "8")
    assert f"<td>selective</td><td>{float(ours['deadline_satisfactory_ratio']):.3f}</td>" in page
    assert float(ours["met"]) <= float(ours["bound"]) + 1e-6


def test_on_a_pool_of_several_types_the_policies_that_know_them_are_compared(tmp_path: Path) -> None:
    trace, folder, pool = tmp_path / "few.csv", tmp_path / "report", ("--pool", "4xV100,4xP100")
    tables = read_throughputs(throughputs_by_type(), ("V100", "P100"))
    write_trace(generate(Recipe(num_jobs=10, num_gpus_weights={1: 1.0}, cluster_gpus=8), tables, 1, "few"), trace)
    status, _, reported = compare("--trace", str(trace), *pool, "--policy", "edf", "--out", str(folder))
    assert status == 2
    assert reported.endswith("policy 'edf' knows no GPU types; on a pool of several choose selective or first-come\n")
    status, printed, _ = compare("--trace", str(trace), *pool, "--json", "--out", str(folder))
    assert status == 0
    runs = json.loads(printed)["runs"]
    assert {run["policy"] for run in runs} == {"selective", "first-come"}
    assert all(set(run["by_type"]) == {"V100", "P100"} for run in runs)


def test_json_is_one_object_with_the_content_of_the_page(tmp_path: Path) -> None:
    trace, folder = tmp_path / "few.csv", tmp_path / "report"
    write_trace(small(), trace)
    chosen = ("--policy", "edf", "--policy", "gandiva", "--nodes", "1", "--bound", "--json")
    status, said, noted = compare("--trace", str(trace), *chosen, "--out", str(folder))
    assert (status, noted) == (0, "")
    shown = json.loads(said)
    assert (shown["overhead"], shown["partial"]) == ("reference", False)
    page = html.unescape((folder / "report.html").read_text())
    assert [figure["title"] for figure in shown["figures"]] == re.findall(r"<h2>(.*?)</h2>", page)
    for figure in shown["figures"]:
        assert figure["caption"] in page
        assert "<tr>" + "".join(f"<th>{name}</th>" for name in figure["columns"]) + "</tr>" in page
        assert all(len(row) == len(figure["columns"]) for row in figure["rows"])
    with (folder / "numbers.csv").open(newline="") as opened:
        written = list(csv.DictReader(opened))
    as_text = [{name: "" if value is None else str(value) for name, value in run.items()} for run in shown["runs"]]
    assert as_text == written
    ours = shown["runs"][0]
    assert [ours["policy"], ours["deadline_satisfactory_ratio"]] == shown["figures"][1]["rows"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", "nowhere.csv"), "nowhere.csv"),
        (("--trace", "small", "--policy", "magic"), "magic"),
        (("--trace", "small", "--nodes", "0"), "nodes must be at least 1"),
    ],
)
def test_bad_input_is_an_error_before_the_first_run(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    status, shown, complaint = compare(*arguments, "--out", str(tmp_path / "report"))
    assert (status, shown) == (2, "")
    assert said in complaint
    assert not (tmp_path / "report").exists()


def test_a_trial_runs_once_for_all_figures_and_any_number_of_processes() -> None:
    comparison = RunMatrix(
        workloads=(small(),),
        clusters=(ClusterShape(num_nodes=1, gpus_per_node=8),),
        policies=("edf", "gandiva"),
    )
    alone, together = Runner(), Runner(workers=2)
    first = alone(comparison.runs())
    assert [outcome.result for outcome in together(comparison.runs())] == [run.result for run in first]
    assert alone(reversed(comparison.runs())) == first[::-1]
    assert all(again is run for again, run in zip(alone(comparison.runs()), first, strict=True))


def test_a_mix_grows_by_more_of_the_same_jobs() -> None:
    workload = small(100)
    chosen = [
        {job.job_id for job in mixed(workload, share, BEST_EFFORT_SEED).jobs if job.deadline_s is None}
        for share in (0.1, 0.3, 0.5)
    ]
    assert chosen[0] < chosen[1] < chosen[2]
    dated = [job for job in workload.jobs if job.deadline_s is not None]
    assert [len(ids) for ids in chosen] == [round(share * len(dated)) for share in (0.1, 0.3, 0.5)]
    assert {job.job_class for job in mixed(workload, 0.5).jobs} == {JobClass.SLO, JobClass.BEST_EFFORT}


def test_deadlines_are_set_to_so_many_durations() -> None:
    workload = small(100)
    due = due_after(workload, 1.5).jobs
    assert [job.job_id for job in due] == [job.job_id for job in workload.jobs]
    for job in due:
        assert job.deadline_s == pytest.approx(job.submitted_at_s + 1.5 * job.duration_s)
        assert job.job_class is JobClass.SLO


def test_figures_10_and_11_have_the_published_setup() -> None:
    """Deadlines of 1.5 durations; up to 90 % best effort, with completion times relative to Gandiva's."""
    matrix = RunMatrix(
        workloads=(small(8),), clusters=(ClusterShape(num_nodes=1, gpus_per_node=8),), policies=("edf", "gandiva")
    )
    runner = Runner()
    assert "due after 1.5 durations" in efficiencies(matrix, runner).title
    mix = mixes(matrix, runner)
    assert mix.columns[9::9] == ("ratio, 90%", "gandiva over it, 90%")
    assert [row[0] for row in mix.rows] == ["edf", "gandiva"]
    assert all(cell in (1.0, None) for cell in mix.rows[1][10:])
    assert mixes(replace(matrix, policies=("edf",)), runner).columns[10] == "edf over it, 10%"


@pytest.mark.parametrize(
    ("interrupted_at", "runs", "figures"),
    [
        (150, ["edf"], ["7", "8"]),  # in the second run
        (400, ["edf", "gandiva", "pollux-fixed-batch"], ["7", "8"]),  # later, among those of other figures
    ],
)
def test_ctrl_c_leaves_a_report_of_the_completed_runs(
    interrupted_at: int,
    runs: list[str],
    figures: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace, folder = tmp_path / "few.csv", tmp_path / "report"
    write_trace(small(), trace)
    interrupt_at(interrupted_at, monkeypatch)
    chosen = [word for policy in ("edf", "gandiva", "pollux-fixed-batch") for word in ("--policy", policy)]
    status, said, noted = compare("--trace", str(trace), *chosen, "--out", str(folder))
    assert status == 130
    assert said.strip() == str(folder / "report.html")
    assert "interrupted" in noted
    page = (folder / "report.html").read_text()
    assert "<h1>Schedulers compared (partial)</h1>" in page
    assert re.findall(r"<h2>Figure (\d+)", page) == figures
    with (folder / "numbers.csv").open(newline="") as opened:
        assert [run["policy"] for run in csv.DictReader(opened)][: len(runs)] == runs
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_first_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(1, monkeypatch)
    status, said, noted = compare("--trace", "small", "--policy", "edf", "--out", str(tmp_path / "report"))
    assert (status, said) == (130, "")
    assert "nothing to report" in noted
    assert not (tmp_path / "report").exists()


def test_ctrl_c_in_the_first_run_is_an_empty_object_with_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(1, monkeypatch)
    status, said, _ = compare("--trace", "small", "--policy", "edf", "--json", "--out", str(tmp_path / "report"))
    shown = json.loads(said)
    assert (status, shown["partial"], shown["figures"], shown["runs"]) == (130, True, [], [])


def test_the_first_trials_are_all_of_a_smaller_comparison() -> None:
    two = RunMatrix(
        workloads=(small(1), small(2)),
        clusters=(ClusterShape(num_nodes=1, gpus_per_node=8), ClusterShape(num_nodes=2, gpus_per_node=8)),
        policies=("edf", "gandiva", "pollux-fixed-batch"),
    )
    simulated_runs = two.runs()
    assert two.first(0) is None
    for num_trials, whole in [(1, 1), (2, 2), (3, 3), (5, 3), (6, 6), (11, 6), (12, 12)]:
        part = two.first(num_trials)
        assert part is not None
        assert part.runs() == simulated_runs[:whole]
