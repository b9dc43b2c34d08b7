"""`eflow simulate loads` on a terminal and in scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elasticflow.simulator.__main__ import app

ROOT = Path(__file__).parents[2]
WINDOWS = "gpu,start_s,end_s\nn1/0,0,30\nn1/1,0,43\nn2/0,100,580\n"
LOADS = """
[[load]]
load_id = "proteins"
tenant = "biology"
tasks = 100
task_s = 10.9
overhead_s = 2.8
start_stop_s = 7
"""


def simulate(folder: Path, *options: str, windows: str = WINDOWS, loads: str = LOADS) -> Result:
    (folder / "windows.csv").write_text(windows)
    (folder / "loads.toml").write_text(loads)
    files = ("--windows", str(folder / "windows.csv"), "--load", str(folder / "loads.toml"))
    return CliRunner().invoke(app, ["simulate", "loads", *files, *options])


def test_json_is_one_object_with_all_numbers(tmp_path: Path) -> None:
    result = simulate(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert (shown["tasks"], shown["tasks_done"], shown["tasks_lost"]) == (100, 1 + 2 + 34, 3)
    assert shown["useful_gpu_s"] == pytest.approx(37 * 10.9)
    assert shown["useful_share_of_idle"] == pytest.approx(37 * 10.9 / 553)
    assert shown["useful_share_of_whole_tasks"] == pytest.approx(1.0)
    assert shown["finished_at_s"] is None
    (load,) = shown["by_load"]
    assert (load["load_id"], load["tasks_done"]) == ("proteins", 37)
    assert load["useful_share"] == pytest.approx(load["useful_share_predicted"])


def test_the_tables_have_the_same_numbers_and_fit_a_terminal(tmp_path: Path) -> None:
    result = simulate(tmp_path)
    assert result.exit_code == 0
    assert "useful_share_of_idle" in result.stdout
    assert "proteins" in result.stdout
    assert "0.729" in result.stdout  # 37 * 10.9 / 553
    assert "…" not in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("windows", "loads", "said"),
    [
        (
            WINDOWS.replace("n1/1,0", "n1/0,20"),
            LOADS,
            "windows.csv:3: start_s '20': GPU n1/0 is idle until 30 s already",
        ),
        (WINDOWS.replace("100,580", "580,100"), LOADS, "windows.csv:4: end_s '100': must come after start_s 580"),
        ("gpu,start_s,end_s\n", LOADS, "windows.csv: has no windows"),
        (WINDOWS.replace("end_s", "end_s,colour"), LOADS, "windows.csv:1: unknown column 'colour'"),
        (WINDOWS, LOADS.replace("100", "0"), "loads.toml:2: tasks '0': a load without tasks"),
        (WINDOWS, LOADS.replace("10.9", "500"), "starves: no window is long enough, the longest is 480 s"),
    ],
)
def test_bad_input_is_an_error_with_exit_code_2(tmp_path: Path, windows: str, loads: str, said: str) -> None:
    result = simulate(tmp_path, "--json", windows=windows, loads=loads)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_missing_files_are_errors_of_usage() -> None:
    result = CliRunner().invoke(app, ["simulate", "loads", "--windows", "nowhere.csv", "--load", "nowhere.toml"])
    assert (result.exit_code, "nowhere.csv: cannot be read" in result.stderr) == (2, True)
    assert CliRunner().invoke(app, ["simulate", "loads"]).exit_code == 2


def test_eflow_passes_the_subcommand_on() -> None:
    command = [sys.executable, "-m", "elasticflow", "simulate", "loads", "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert helped.returncode == 0
    assert "Usage: eflow simulate loads" in helped.stdout
    assert "eflow simulate loads --windows windows.csv --load loads.toml" in helped.stdout
