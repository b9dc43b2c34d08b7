"""Files of idle windows and of padding loads, and the errors in them."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.scheduling.padding.cost_model import TaskCost
from elasticflow.simulator.padding.windows_and_loads import (
    IdleWindow,
    PaddingLoad,
    read_loads,
    read_windows,
    require_long_windows,
    write_windows,
)
from elasticflow.simulator.workload.csv_table import BadInput

WINDOWS = (IdleWindow("n1/0", 0.0, 30.5), IdleWindow("n2/0", 1.25, 1e7, "A100"), IdleWindow("n1/0", 30.5, 90.1))
LOAD = 'load_id = "a"\ntenant = "lab"\ntasks = 10\ntask_s = 10.9\n'


def test_windows_that_were_written_are_read_back(tmp_path: Path) -> None:
    write_windows(tmp_path / "windows.csv", WINDOWS)
    assert read_windows(tmp_path / "windows.csv") == WINDOWS


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("gpu,start_s,end_s\na,0,10\nb,0,9\na,9,20\n", ":4: start_s '9': GPU a is idle until 10 s already (line 2)"),
        ("gpu,start_s,end_s\na,10,10\n", ":2: end_s '10': must come after start_s 10"),
        ("gpu,start_s,end_s\na,-1,10\n", ":2: start_s '-1': must be 0 to"),
        ("gpu,start_s,end_s\na,0,inf\n", ":2: end_s 'inf': must be 0 to"),
        ("gpu,start_s,end_s\n,0,10\n", ":2: gpu '': is missing"),
        ("gpu,start_s,end_s\na,0\n", ":2: has 2 cells where the header has 3"),
        ("gpu,start_s,end_s\n", ": has no windows: give one row"),
        ("", "is empty"),
        ("gpu,start_s,end_s,colour\na,0,10,red\n", ":1: unknown column 'colour'"),
        ("gpu,start_s,ends_s\na,0,10\n", ":1: unknown column 'ends_s'; is it 'end_s'?"),
        ("gpu,start_s\na,0\n", ":1: no column end_s"),
    ],
)
def test_a_bad_file_of_windows_is_named_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "windows.csv"
    file.write_text(text)
    with pytest.raises(BadInput) as raised:
        read_windows(file)
    assert error in str(raised.value)
    assert str(file) in str(raised.value)


def test_toml_and_csv_give_the_same_loads(tmp_path: Path) -> None:
    toml, csv = tmp_path / "loads.toml", tmp_path / "loads.csv"
    toml.write_text(f'[[load]]\n{LOAD}overhead_s = 2.8\nweight = 2\ngpu_type = "A100"\nopened_at_s = 5\nspread = 0.1\n')
    csv.write_text(
        "load_id,tenant,tasks,task_s,overhead_s,weight,gpu_type,opened_at_s,spread\na,lab,10,10.9,2.8,2,A100,5,0.1\n"
    )
    assert read_loads(toml) == read_loads(csv)
    assert read_loads(toml) == (
        PaddingLoad(
            load_id="a",
            tenant="lab",
            num_tasks=10,
            cost=TaskCost(task_s=10.9, overhead_s=2.8, start_stop_s=0.0),
            weight=2.0,
            opened_at_s=5.0,
            gpu_type="A100",
            spread=0.1,
        ),
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (LOAD.replace("10\n", "0\n", 1), ":1: tasks '0': a load without tasks; give 1 to 10000000, or remove"),
        (LOAD.replace("tasks = 10\n", ""), ":1: tasks '': is missing"),
        (LOAD.replace("10.9", "0"), ":1: task_s '0': must be 0.0001 to"),
        (LOAD.replace("10.9", '"long"'), ":1: task_s 'long': is not a number"),
        (LOAD + "colour = 1\n", ":1: unknown key 'colour'; a load has load_id, tenant"),
        (LOAD + "[[load]]\n" + LOAD, ":6: load_id 'a': is another load's id already"),
        (LOAD + "[[load]]\nweight = 2\n" + LOAD.replace('"a"', '"b"'), ":6: weight '2': load a gives tenant lab"),
        (LOAD + "[[work]]\n", ": unknown key 'work'"),
        (LOAD + "task_s", "is not TOML"),
    ],
)
def test_a_bad_load_is_named_with_its_line(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "loads.toml"
    file.write_text("[[load]]\n" + text)
    with pytest.raises(BadInput) as raised:
        read_loads(file)
    assert error in str(raised.value)


@pytest.mark.parametrize(("text", "error"), [("", "has no load"), ("load = 3", "'load' is not a list of tables")])
def test_a_file_without_tables_of_loads_is_an_error(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "loads.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=error):
        read_loads(file)


def test_a_load_that_starves_is_an_error_with_the_longest_window() -> None:
    load = PaddingLoad(
        load_id="a", tenant="lab", num_tasks=1, cost=TaskCost(task_s=50.0, overhead_s=5.0, start_stop_s=5.0)
    )
    require_long_windows(Path("loads.toml"), [load], [IdleWindow("n1/0", 0.0, 60.0)])
    with pytest.raises(BadInput, match=r"a starves: no window is long enough, the longest is 59\.5 s") as raised:
        require_long_windows(Path("loads.toml"), [load], [IdleWindow("n1/0", 0.0, 59.5), IdleWindow("n1/1", 0.0, 9.0)])
    assert "divide these loads into shorter tasks" in str(raised.value)
    typed = replace(load, gpu_type="A100")
    with pytest.raises(BadInput, match="no window of GPU type A100 is long enough, the longest is 0 s"):
        require_long_windows(Path("loads.toml"), [typed], [IdleWindow("n1/0", 0.0, 60.0)])
