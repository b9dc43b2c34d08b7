"""One call of a padding load's function on pickled bytes, and the function's import."""

import hashlib
import io
import pdb
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticflow.services.executor.worker.tasks.run_tasks import FunctionUnusable, execute, load_task_function
from elasticflow.shared.messages.worker_protocol.frames import encode_frame
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES, TaskDone, TaskFailed

MODULE = """
import os
class Class:
    @staticmethod
    def method(x):
        return -x
def function(x):
    return x + 1
number = 3
"""


def call(
    function: Any, task_input: bytes = pickle.dumps(1), memory_limit_bytes: int = 0, results_folder: str = ""
) -> TaskDone | TaskFailed:
    outcome = execute(function, 7, 3, task_input, memory_limit_bytes=memory_limit_bytes, results_folder=results_folder)
    assert (outcome.bundle_id, outcome.index) == (7, 3)
    assert outcome.task_s >= 0
    encode_frame(outcome)
    return outcome


def failure(function: Any, task_input: bytes = pickle.dumps(1), **options: Any) -> TaskFailed:
    outcome = call(function, task_input, **options)
    assert isinstance(outcome, TaskFailed)
    return outcome


def raising(error: BaseException) -> Any:
    def function(_: Any) -> None:
        raise error

    return function


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def test_a_result_is_pickled() -> None:
    done = call(lambda x: {"twice": 2 * x})
    assert isinstance(done, TaskDone)
    assert pickle.loads(done.result) == {"twice": 2}


def test_the_error_and_the_end_of_the_traceback_are_reported() -> None:
    failed = failure(raising(ValueError("no")))
    assert failed.error == "ValueError: no"
    assert failed.traceback.endswith("ValueError: no\n")
    assert "in execute" not in failed.traceback


@pytest.mark.parametrize(
    "error",
    [Unspeakable(), ValueError("\udcff" * 9), ValueError("x" * 100_000), KeyboardInterrupt(), GeneratorExit()],
)
def test_no_error_keeps_its_report_from_being_sent(error: BaseException) -> None:
    assert type(error).__name__ in failure(raising(error)).error


def asks(_: Any) -> str:
    return input()


def debugs(_: Any) -> None:
    debugger = pdb.Pdb(stdin=io.StringIO(), stdout=io.StringIO())
    debugger.set_trace()
    pytest.fail("it is quit before this line")


@pytest.mark.parametrize(
    ("function", "said"), [(asks, "the code asks for input at "), (debugs, "a debugger waits for its user at ")]
)
def test_a_task_that_waits_for_a_person_is_told_that_nobody_answers(
    function: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    error = failure(function).error
    assert re.match(rf"{said}(\S*/)?test_task_function\.py:\d+, and a task has no terminal: ", error)
    assert ": let its input say what it asks for, or call the function on your own" in error


def test_system_exit_ends_the_runner() -> None:
    with pytest.raises(SystemExit):
        call(raising(SystemExit(3)))


def test_an_input_that_is_no_pickle_fails_the_task() -> None:
    assert "UnpicklingError" in failure(lambda x: x, b"garbage").error


def test_a_result_above_the_limit_fails_the_task_without_a_folder() -> None:
    assert "its result has" in failure(lambda _: bytes(MAX_TASK_BYTES)).error


def test_a_result_above_the_limit_is_a_file_named_by_its_content(tmp_path: Path) -> None:
    outcomes = [call(lambda _: bytes(MAX_TASK_BYTES), results_folder=str(tmp_path / "load")) for _ in range(2)]
    (file,) = (tmp_path / "load").iterdir()
    for outcome in outcomes:
        assert isinstance(outcome, TaskDone)
        assert (outcome.result, outcome.file_digest) == (b"", file.name)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name
    assert pickle.loads(file.read_bytes()) == bytes(MAX_TASK_BYTES)


def test_a_result_file_that_cannot_be_written_fails_the_task(tmp_path: Path) -> None:
    (tmp_path / "load").touch()
    assert "FileExistsError" in failure(lambda _: bytes(MAX_TASK_BYTES), results_folder=str(tmp_path / "load")).error
    assert [file.name for file in tmp_path.iterdir()] == ["load"]


def test_an_exceeded_memory_limit_is_named() -> None:
    assert "the limit is 1,000 bytes" in failure(raising(MemoryError()), memory_limit_bytes=1000).error
    assert failure(raising(MemoryError())).error == "MemoryError"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_tasks.py").write_text(MODULE)
    yield str(tmp_path)
    sys.modules.pop("own_tasks", None)


@pytest.mark.parametrize(("name", "result"), [("function", 3), ("Class.method", -2)])
def test_a_function_is_imported_by_name(folder: str, name: str, result: int) -> None:
    assert load_task_function(f"own_tasks:{name}", folder)(2) == result


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("own_tasks", "write it as package.module:function"),
        (":function", "write it as package.module:function"),
        ("own_tasks:make.<locals>.inner", "cannot be imported by name"),
        ("own_tasks:absent", "module own_tasks has no function absent"),
        ("own_tasks:number", "not callable but of type int"),
        ("no_such_module:f", "cannot import no_such_module"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(folder: str, path: str, reason: str) -> None:
    with pytest.raises(FunctionUnusable, match=reason):
        load_task_function(path, folder)
