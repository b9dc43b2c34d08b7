"""Whether tasks of a padding load pay in idle windows, and the length of tasks that pays most."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from elasticflow.shared.scheduling.padding.cost_model import TaskCost
from elasticflow.shared.scheduling.padding.task_length import best_task_s, best_task_s_by_quantiles
from elasticflow.simulator.__main__ import app
from elasticflow.simulator.padding.commands import lines, suitability

PROTEINS = TaskCost(task_s=10.9, overhead_s=2.8, start_stop_s=7.0)
IMAGES = TaskCost(task_s=0.025, overhead_s=0.9, start_stop_s=0.0)


def suits(*options: str, windows_s: list[float]) -> Result:
    return CliRunner().invoke(app, ["suits", *options], input=json.dumps(windows_s))


def test_tasks_pay_where_useful_time_is_cheaper_than_ordinary_time() -> None:
    found = suitability([60.0, 30.0, 3.0], PROTEINS, 0.1)
    share = (3 + 1) * 10.9 / 93.0
    assert (found.num_windows, found.median_window_s, found.idle_s, found.pays) == (3, 30.0, 93.0, True)
    assert (found.useful_share, found.cost_ratio) == (pytest.approx(share), pytest.approx(0.1 / share))
    assert lines(found, PROTEINS)[-1] == "it pays: useful GPU time costs 21% of ordinary GPU time"


def test_the_best_length_is_named_where_this_one_does_not_pay() -> None:
    found = suitability([60.0], IMAGES, 0.1)
    assert not found.pays
    assert found.best_task_s == pytest.approx(59.1)
    assert found.best_useful_share == pytest.approx(59.1 / 60.0)
    assert "best task     59.1 s, useful share 98.5%" in lines(found, IMAGES)
    assert lines(found, IMAGES)[-1].startswith("it does not pay: useful GPU time costs 3")


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (TaskCost(task_s=9.0, overhead_s=90.0, start_stop_s=0.0), "none: each window is shorter than the overhead"),
        (
            TaskCost(task_s=90.0, overhead_s=0.0, start_stop_s=0.0),
            "as short as possible, because tasks have no overhead",
        ),
    ],
)
def test_a_window_without_a_task_has_no_cost_ratio(cost: TaskCost, said: str) -> None:
    found = suitability([60.0], cost, 0.1)
    assert (found.cost_ratio, found.best_task_s, found.pays) == (None, None, False)
    assert f"best task     {said}" in lines(found, cost)
    assert lines(found, cost)[-1] == "it does not pay: no window is long enough for a task"


def test_without_windows_admission_opens_each_load() -> None:
    result = suits("--task-s", "1", "--price-ratio", "0.1", windows_s=[])
    assert result.exit_code == 0
    assert result.stdout == (
        "no GPU of this pool was idle for the time of a task so far, so nothing is predicted; "
        "admission opens such a load\n"
    )
    never = suits("--task-s", "1", "--overhead-s", "60", "--price-ratio", "0.1", windows_s=[])
    assert never.exit_code == 1
    assert never.stdout.startswith("it does not pay: its tasks are useful for 1.6% of their time at most")
    unknown = suits("--task-s", "1", "--price-ratio", "0.1", "--json", windows_s=[])
    assert json.loads(unknown.stdout)["useful_share"] is None


def test_the_exit_code_says_whether_it_pays() -> None:
    task = ("--task-s", "10.9", "--overhead-s", "2.8", "--start-stop-s", "7", "--json")
    assert suits(*task, "--price-ratio", "0.1", windows_s=[60.0]).exit_code == 0
    result = suits(*task, "--price-ratio", "0.9", windows_s=[60.0])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["pays"] is False


def test_windows_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "windows.csv"
    task = ("--task-s", "10.9", "--overhead-s", "2.8", "--price-ratio", "0.1", "--windows", str(file))
    missing = suits(*task, windows_s=[])
    assert (missing.exit_code, str(file) in missing.stderr) == (2, True)
    file.write_text("gpu,start_s,end_s\na,0,60\nb,10,40\n")
    assert suits(*task, windows_s=[]).stdout.startswith("idle windows  2, median 45.0s, 1m 30s in all\n")


def test_quantiles_of_few_windows_are_the_windows_and_of_many_they_come_close() -> None:
    few_s = [107.0, 57.0, 3.0]
    assert best_task_s_by_quantiles(few_s, 2.8, 7.0) == pytest.approx(best_task_s(few_s, 2.8, 7.0))
    many_s = np.random.default_rng(7).exponential(291.0, 1_024)
    best_s = best_task_s_by_quantiles(many_s, 2.8, 7.0)
    assert best_s is not None
    at_best = suitability(list(many_s), TaskCost(task_s=best_s, overhead_s=2.8, start_stop_s=7.0), 0.1)
    exact_s = best_task_s(many_s, 2.8, 7.0)
    exact = suitability(list(many_s), TaskCost(task_s=exact_s, overhead_s=2.8, start_stop_s=7.0), 0.1)
    assert at_best.useful_share is not None
    assert at_best.useful_share == pytest.approx(exact.useful_share, rel=0.05)
