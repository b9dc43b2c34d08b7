"""`python -m benchmarks.papers` as a user runs it: a figure, an interruption, a resumed run, missing traces."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 300.0


def started(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.papers", "--workers", "1", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(*arguments: str) -> tuple[int, str]:
    process = started(*arguments)
    _, said = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


def interrupted(process: "subprocess.Popen[str]", *, once: Callable[[], bool]) -> str:
    """What a process says that is interrupted as soon as this holds. It ends cleanly, with exit code 130."""
    give_up_at = time.monotonic() + DEADLINE_S
    while not once():
        assert time.monotonic() < give_up_at
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    return said


def test_rows_without_their_trace_name_it_and_the_page_is_whole(tmp_path: Path) -> None:
    code, said = ended("--only", "EF-F6b", "--only", "EF-F12b", "--out", str(tmp_path))
    assert code == 0, said
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["counts"]["not run"] == len(report["rows"])
    assert report["rows"][0]["missing"] == ["the trace itp_195job.csv in the folder of --traces"]
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "python -m benchmarks.papers --only EF-F12b" in page
    assert "itp_195job" in (tmp_path / "report.md").read_text()
    assert report["analogue_counts"] == {"differs": 0, "holds": 0, "not run": len(report["analogues"][0]["checks"])}
    assert "not run: --live" in page


@pytest.mark.nightly("a benchmark; unit/benchmarks/test_papers_execution.py has the judgement")
def test_a_trace_that_no_paper_has_is_run_and_not_judged(tmp_path: Path) -> None:
    traces, out = tmp_path / "traces", tmp_path / "report"
    traces.mkdir()
    shutil.copy(REPOSITORY / "simulator" / "data" / "traces" / "small.csv", traces / "june.csv")
    code, said = ended("--traces", str(traces), "--gpus", "64", "--only", "trace-june", "--out", str(out))
    assert code == 0, said
    report = json.loads((out / "report.json").read_text())
    assert report["counts"]["no published value"] == len(report["rows"]) == 6
    assert all(0.0 <= row["measurement"]["value"] <= 1.0 for row in report["rows"])
    assert "Deadlines met in trace june on 64 GPUs" in (out / "report.html").read_text()


@pytest.mark.nightly("a benchmark; unit/benchmarks/test_papers_execution.py has what is resumed")
def test_an_interrupted_run_reports_what_it_has_and_is_resumed(tmp_path: Path) -> None:
    process = started("--only", "EF-F10-makespan", "--out", str(tmp_path))
    said = interrupted(process, once=lambda: any((tmp_path / "runs").glob("*.json")))
    assert "--resume goes on" in said
    first = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "runs").glob("*.json")}
    assert (tmp_path / "report.html").exists()
    code, said = ended("--only", "EF-F10-makespan", "--out", str(tmp_path), "--resume")
    assert code == 0, said
    kept = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "runs").glob("*.json")}
    assert first.items() <= kept.items()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["counts"]["not run"] == 0
    assert report["counts"]["reproduced"] == 0  # on the project's own tables the direction can hold at most
    assert "<svg" in (tmp_path / "report.html").read_text()


@pytest.mark.nightly("a benchmark; unit/benchmarks has the report")
def test_an_interrupted_live_run_writes_its_report(tmp_path: Path) -> None:
    process = started("--live", "--only", "VF-F10", "--out", str(tmp_path))
    assert process.stderr is not None
    assert "live 1/1: three-jobs-1" in process.stderr.readline()
    children = psutil.Process(process.pid).children
    interrupted(process, once=lambda: len(children(recursive=True)) > 1)  # the fork server and a worker
    report = json.loads((tmp_path / "report.json").read_text())
    assert [analogue["conditions"] for analogue in report["analogues"]] == ["0 of 1 parts measured; not run: --live"]


@pytest.mark.nightly("a benchmark; unit/benchmarks/test_papers_execution.py has what is resumed")
def test_runs_of_other_inputs_are_not_resumed_and_bad_figures_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "inputs.json").write_text('{"digest": "of something else"}')
    code, said = ended("--only", "F12", "--out", str(tmp_path), "--resume")
    assert (code, "leave out --resume" in said) == (2, True)
    code, said = ended("--only", "F99", "--out", str(tmp_path))
    assert (code, "no figure is named 'F99'" in said) == (2, True)
    code, said = ended("--traces", str(tmp_path / "absent"), "--out", str(tmp_path))
    assert (code, "Invalid value for '--traces'" in said) == (2, True)
