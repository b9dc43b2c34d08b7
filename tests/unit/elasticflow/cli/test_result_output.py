"""How inputs of `eflow map` are parsed, and how its results are printed."""

import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import typer

from elasticflow.cli.map_function import InputLines
from elasticflow.cli.option_values import size_of
from elasticflow.cli.results import ResultOutput
from elasticflow.client.loads import pickled_value_of
from elasticflow.errors import InputUnusable, NotPrintable, TaskError
from elasticflow.sdk.submission import load_function
from elasticflow.shared.messages.padding_tasks import TaskResult
from tests.support.error_codes import coded


def returned(index: int, value: Any) -> TaskResult:
    return TaskResult(index=index, value=pickle.dumps(value), attempts=1, task_s=1.0, node_id="n")


def failed(index: int) -> TaskResult:
    return TaskResult(index=index, error="ValueError: no", attempts=2, task_s=1.0, node_id="n")


def printed(*results: TaskResult, as_json: bool = False, keep_going: bool = False) -> tuple[list[str], ResultOutput]:
    out = io.StringIO()
    output = ResultOutput(out, as_json=as_json, pickle_dir=None, keep_going=keep_going)
    output.write_all(results, lambda result: pickled_value_of(result, None), lambda: len(results))
    return out.getvalue().splitlines(), output


@pytest.mark.parametrize("value", [None, 1.5, "é\n", [1, {"a": None}], {"b": [True]}])
def test_each_value_is_one_line_of_json(value: Any) -> None:
    (line,), _ = printed(returned(0, value))
    assert json.loads(line) == value
    (line,), _ = printed(returned(7, value), as_json=True)
    assert json.loads(line) == {"index": 7, "value": value}


@pytest.mark.parametrize(
    ("value", "says"), [({1}, "set"), (b"x", "bytes"), (float("nan"), "JSON compliant"), (1j, "complex")]
)
def test_values_that_json_cannot_hold_are_errors(value: Any, says: str) -> None:
    with pytest.raises(NotPrintable, match=f"result of task 3 cannot be printed as JSON: .*{says}.*--pickle DIR"):
        printed(returned(3, value))


def test_a_result_that_cannot_be_unpickled_is_an_error() -> None:
    unknown = TaskResult(index=0, value=b"cnot_a_module\nName\n.", attempts=1, task_s=1.0, node_id="n")
    with pytest.raises(NotPrintable, match="unpickling failed: ModuleNotFoundError"):
        printed(unknown)


def test_failures_end_the_output_or_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TaskError, match="task 1 failed 2 times"):
        printed(returned(0, "a"), failed(1))
    lines, output = printed(failed(0), returned(1, {1}), returned(2, "c"), keep_going=True)
    assert (lines, output.num_failed, output.num_unprinted) == (['"c"'], 2, 1)
    assert "eflow: task 0 failed 2 times" in capsys.readouterr().err


def test_lines_are_read_as_they_are_needed(tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(b"a\r\n\n\xff")
    lines = InputLines(str(file), json_lines=False)
    reading = iter(lines)
    assert (next(reading), lines.num_read) == ("a\r", 1)
    assert (list(reading), lines.num_read) == (["", "\udcff"], 3)


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"a": 1}\nnot json\n')
    lines = iter(InputLines(str(file), json_lines=True))
    assert next(lines) == {"a": 1}
    with pytest.raises(InputUnusable, match=r"line 2 of .*in\.jsonl is not JSON", check=coded("bad_input_line")):
        next(lines)


def test_sizes_are_binary() -> None:
    assert [size_of(text, "--memory") for text in ("0", "512MiB", "8Gi", "3B")] == [0, 512 << 20, 8 << 30, 3]
    with pytest.raises(typer.BadParameter, match="'8GB' is not a size"):
        size_of("8GB", "--memory")


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("json", "name a file and a function"),
        ("functions.py", "name a file and a function"),
        ("json:nothing", "json has no function nothing"),
        ("string:digits", "digits is not a function"),
        ("not_a_module:f", "importing not_a_module failed"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_explained(target: str, says: str) -> None:
    with pytest.raises(InputUnusable, match=says, check=coded("not_loadable")):
        load_function(target)
    assert load_function("json:loads") is json.loads
