"""`eflow simulate` on a terminal and in scripts."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

from elasticflow.shared.messages.events import PlanEvent
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.__main__ import app
from elasticflow.simulator.verification import trace_verification
from elasticflow.simulator.verification.trace_verification import TraceVerification
from elasticflow.simulator.workload.workload import bundled_trace
from tests.support.interrupting import interrupt_at

ROOT = Path(__file__).parents[2]
HEADER = "submission_time,num_iteration,model_name,deadline,batch_size\n"
GOOD_ROW = "0,1000,resnet50,90000,64\n"
NUMBERS = (
    "policy",
    "jobs",
    "admitted",
    "rejected",
    "met",
    "late",
    "bound",
    "fraction_of_bound",
    "certificates_checked",
    "certificate_failures",
    "deadline_satisfactory_ratio",
    "cluster_efficiency",
    "makespan_s",
    "mean_jct_s",
    "median_jct_s",
    "mean_jct_small_s",
    "median_jct_large_s",
    "mean_jct_best_effort_s",
    "max_slowdown_best_effort",
    "max_stops_best_effort",
    "mean_queueing_s",
    "median_queueing_s",
    "utilization",
    "scheduling_interval_s",
    "resizes",
    "migrations",
    "wall_s",
    "peak_rss_mb",
    "partial",
)


def simulate(*arguments: str, policy: str = "edf") -> Result:
    """Most of these tests hold for any policy; EDF is fast."""
    return CliRunner().invoke(app, ["simulate", "--policy", policy, *arguments])


def numbers(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_is_one_object_with_all_numbers() -> None:
    shown = numbers(simulate("--trace", "small", "--nodes", "2", "--json"))
    assert set(NUMBERS) <= shown.keys()
    assert shown["jobs"] == 100
    assert shown["admitted"] + shown["rejected"] == 100
    assert shown["num_gpus"] == 16
    assert not shown["partial"]


def test_a_person_reads_a_line_for_each_question() -> None:
    result = simulate("--trace", "small", "--nodes", "2")
    assert result.exit_code == 0
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0] == "run             small on 16 GPUs, policy edf, overhead reference"
    assert [line.split("  ")[0] for line in lines if not line.startswith(" ")][1:4] == [
        "jobs",
        "deadlines",
        "soft deadlines",
    ]
    assert len(lines) < 25
    assert max(map(len, lines)) <= 80
    assert result.stderr == ""


def test_eflow_passes_on_arguments_output_and_exit_code() -> None:
    def eflow(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "elasticflow", "simulate", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    done = eflow("--trace", "small", "--policy", "edf", "--json")
    assert (done.returncode, json.loads(done.stdout)["policy"]) == (0, "edf")
    assert eflow("--trace", "small", "--nodes", "0").returncode == 2
    helped = eflow("--help")
    assert helped.returncode == 0
    assert "eflow simulate --trace" in helped.stdout


def test_a_signal_to_eflow_reaches_the_simulation(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    os.mkfifo(trace)
    command = [sys.executable, "-m", "elasticflow", "simulate", "--trace", str(trace), "--json"]
    with subprocess.Popen(command, cwd=ROOT) as eflow, trace.open("w"):  # open once it is read
        assert "elasticflow.simulator" in psutil.Process(eflow.pid).cmdline()
        eflow.terminate()
        assert eflow.wait(timeout=60) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("called", "usage"),
    [
        ("elasticflow", "Usage: eflow simulate "),
        ("simulator", "Usage: python -m elasticflow.simulator simulate "),
    ],
)
def test_the_usage_line_names_the_typed_command(called: str, usage: str) -> None:
    command = [sys.executable, "-m", called, "simulate", "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert usage in helped.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", "nowhere.csv"), "nowhere.csv: is no file, and none of the bundled traces bursty, small"),
        (("--trace", "small", "--nodes", "0"), "nodes must be at least 1"),
        (("--trace", "small", "--gpus-per-node", "0"), "GPUs per node must be at least 1"),
        (("--trace", "small", "--policy", "magic"), "policy 'magic' must be one of selective"),
        (
            ("--trace", "small", "--best-effort", "magic"),
            "'magic' is no rule; choose one of shortest-first, fair, elas",
        ),
        (
            ("--trace", "small", "--policy", "edf", "--best-effort", "fair"),
            "'edf' has a rule of its own; for a rule of",
        ),
        (("--trace", "small", "--overhead", "much"), "overhead 'much' must be none"),
        (("--trace", "small", "--throughputs", "nowhere"), "nowhere"),
        (("--trace", "small", "--out", "/dev/null/out"), "/dev/null/out: no file can be written there"),
        (("--trace", "small", "--pool", "4xV100,8"), "cannot read '8'; give each type once, as NUMBERxTYPE"),
        (("--trace", "small", "--pool", "4xV100", "--nodes", "2"), "give one of them"),
        (("--trace", "small", "--pool", "4xV100,8xH100"), "no throughputs of GPU type 'H100'; it has K80, P100, V100"),
    ],
)
def test_bad_input_is_an_error_with_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    result = simulate(*arguments, "--json")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


class Distrustful(TraceVerification):
    """Rejects every certificate."""

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        self.certificates_checked += 1
        self.certificate_failures += 1
        self.failures.append(f"at {now_s} s: I do not like it")


def test_a_wrong_certificate_is_counted_reported_and_sets_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_verification, "TraceVerification", Distrustful)
    result = simulate("--trace", "small", "--nodes", "2", "--json", policy="selective")
    assert result.exit_code == 1
    shown = json.loads(result.stdout)
    assert shown["certificates_checked"] == shown["certificate_failures"] > 0
    assert result.stderr.count("certificate refused: at ") == 5


def test_a_baseline_makes_no_promise_to_check() -> None:
    shown = numbers(simulate("--trace", "small", "--nodes", "2", "--json"))
    assert shown["certificates_checked"] is None
    assert shown["certificate_failures"] is None


TYPED_ROWS = "0,500000,resnet50,9000,64\n10,400000,resnet18,9000,128\n20,900000,transformer,,16\n"


@pytest.fixture
def typed_trace(tmp_path: Path) -> str:
    """Three jobs of the models in the bundled tables by type, one of them best effort."""
    trace = tmp_path / "typed.csv"
    rows = "".join(f"{row},{int(row.split(',')[3] == '')}\n" for row in TYPED_ROWS.splitlines())
    trace.write_text(f"{HEADER.strip()},best_effort\n{rows}")
    return str(trace)


def test_a_pool_of_several_types_shows_its_numbers_by_type(typed_trace: str) -> None:
    arguments = ("--trace", typed_trace, "--pool", "4xV100,8xP100,16xK80")
    shown = numbers(simulate(*arguments, "--bound", "--json", policy="selective"))
    by_type = shown["by_type"]
    assert {name: each["gpus"] for name, each in by_type.items()} == {"V100": 4, "P100": 8, "K80": 16}
    assert shown["num_gpus"] == 28
    assert sum(each["jobs"] for each in by_type.values()) == shown["admitted"]
    assert sum(each["met"] for each in by_type.values()) == shown["met"] <= shown["bound"]
    assert sum(each["gpu_hours"] for each in by_type.values()) == pytest.approx(shown["gpu_hours"])
    assert all(0 <= each["utilization"] <= 1 and each["late"] == 0 for each in by_type.values())
    assert shown["certificates_checked"] > 0 == shown["certificate_failures"]
    table = simulate(*arguments, policy="selective").stdout.splitlines()
    assert [line.split()[0] for line in table[-4:]] == ["type", "V100", "P100", "K80"]


def test_a_baseline_on_several_types_is_refused(typed_trace: str) -> None:
    refused = simulate("--trace", typed_trace, "--pool", "4xV100,8xP100")
    assert refused.exit_code == 2
    assert "policy 'edf' knows no GPU types; on a pool of several choose selective or first-come" in refused.stderr


def test_a_pool_of_one_named_type_gives_the_numbers_of_equal_gpus() -> None:
    equal = numbers(simulate("--trace", "small", "--nodes", "2", "--json", policy="selective"))
    named = numbers(simulate("--trace", "small", "--pool", "16xH100", "--json", policy="selective"))
    measured = {"wall_s": 0.0, "peak_rss_mb": 0.0}
    assert equal | measured == named | measured
    assert equal["by_type"] is None


def test_a_missing_trace_is_a_usage_error() -> None:
    result = simulate()
    assert result.exit_code == 2
    assert "--trace" in result.output


def test_a_bad_row_is_named_or_skipped(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(HEADER + GOOD_ROW + "0,-5,resnet50,90000,64\n")
    refused = simulate("--trace", str(trace), "--json")
    assert refused.exit_code == 2
    assert f"{trace}:3" in refused.stderr
    passed = simulate("--trace", str(trace), "--json", "--skip-bad")
    assert numbers(passed)["jobs"] == 1
    assert f"skipped: {trace}:3" in passed.stderr


def test_out_writes_tables_that_agree_with_the_numbers_and_figures(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    shown = numbers(simulate("--trace", "small", "--nodes", "2", "--json", "--out", str(folder)))
    with (folder / "jobs.csv").open(newline="") as opened:
        jobs = list(csv.DictReader(opened))
    assert len(jobs) == shown["jobs"]
    assert sum(job["decision"] == "admitted" for job in jobs) == shown["admitted"]
    assert sum(job["met"] == "1" for job in jobs) == shown["met"] + shown["soft_met"]
    with (folder / "events.csv").open(newline="") as opened:
        events = list(csv.DictReader(opened))
    times_s = [float(event["at_s"]) for event in events]
    assert times_s == sorted(times_s)
    assert sum(event["event"] == "finished" for event in events) == shown["admitted"]
    with (folder / "windows.csv").open(newline="") as opened:
        windows = list(csv.DictReader(opened))
    assert len(windows) == shown["idle_windows"]
    idle_s = sum(float(window["end_s"]) - float(window["start_s"]) for window in windows)
    assert idle_s == pytest.approx(3_600.0 * shown["idle_gpu_hours"])
    for name in ("gpus", "jobs", "efficiency", "idle"):
        picture = (folder / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert 5_000 < len(picture) < 300_000


def test_ctrl_c_shows_partial_results_marked_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at(10, monkeypatch)
    before = signal.getsignal(signal.SIGINT)
    result = simulate("--trace", "small", "--nodes", "2", "--json", "--bound")
    assert result.exit_code == 130
    shown = json.loads(result.stdout)
    assert shown["partial"]
    assert shown["bound"] is None  # of the whole trace, which takes a while
    assert shown["admitted"] < 20
    assert signal.getsignal(signal.SIGINT) is before


def test_nodes_fail_from_a_seed() -> None:
    failing = ("--trace", "small", "--nodes", "2", "--json", "--failures", "7", "--up-hours", "6")
    shown = numbers(simulate(*failing))
    assert shown["outages"] > 0
    assert shown["unfinished"] == 0
    limited = numbers(simulate(*failing, "--down-hours", "48", "--max-down", "1"))
    assert 0 < limited["outages"] < numbers(simulate(*failing, "--down-hours", "48"))["outages"]


def test_a_bundled_name_comes_before_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").write_text("no trace\n")
    by_name, by_file = (
        simulate("--trace", "small", "--json"),
        simulate("--trace", str(bundled_trace("small")), "--json"),
    )
    assert numbers(by_name)["met"] == numbers(by_file)["met"]


TALKING_LIBRARY = """
import importlib, os, sys
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["highspy"]
real = importlib.import_module("highspy")

def talk():
    print("a banner")
    os.write(1, b"a banner of its C code\\n")

class Highs(real.Highs):
    def __init__(self):
        talk()
        super().__init__()

talk()
globals().update({name: value for name, value in vars(real).items() if name not in globals()})
sys.modules["highspy"] = sys.modules["talking_highspy"] = module = type(sys)("highspy")
vars(module).update({**globals(), "Highs": Highs})
"""


def test_a_library_that_prints_does_not_reach_the_result(tmp_path: Path) -> None:
    """As HiGHS 1.16 does in its constructor."""
    library = tmp_path / "highspy"
    library.mkdir()
    (library / "__init__.py").write_text(TALKING_LIBRARY)
    arguments = ["simulate", "--trace", "small", "--nodes", "1", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "elasticflow.simulator", *arguments],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(ended.stdout)["certificates_checked"] > 0, ended.stderr
    assert "a banner\n" in ended.stderr
    assert "a banner of its C code\n" in ended.stderr
