"""Which code of a padding load is sent, and how its functions are named on the nodes."""

import functools
import importlib
import json
import math
import operator
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from elasticflow import PackagingFailed
from elasticflow.sdk.padding import PickledCalls, call, call_each, load_name, named_code
from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.worker_protocol.task_running import MAX_TASK_BYTES
from testbed.user_code import task_functions

OWN = """
from beside import Point
def double(x, by=0): return 2 * x + by
class Pair:
    def __init__(self, first): self.first = first
    @staticmethod
    def swap(x): return x
lambda_of_own = lambda x: x
def moved(point): return Point(point.x + 1)
"""
BESIDE = """
class Point:
    def __init__(self, x): self.x = x
def half(x): return x / 2
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of a user, which imports another one beside it."""
    return user_module(tmp_path, monkeypatch, own_functions=OWN, beside=BESIDE)


def user_module(folder: Path, monkeypatch: pytest.MonkeyPatch, **sources: str) -> ModuleType:
    """Write these modules, and import the first one."""
    folder.mkdir(exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(next(iter(sources)))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (math.sqrt, "math:sqrt"),
        (json.dumps, "json:dumps"),
        (operator.neg, "_operator:neg"),
        (np.mean, "numpy:mean"),
        (call_each, "elasticflow.sdk.padding:call_each"),
    ],
)
def test_functions_of_installed_packages_are_not_sent(function, name):
    assert named_code(function) == (name, None)


def test_functions_of_a_user_are_sent():
    name, code = named_code(task_functions.double)
    assert name == "task_functions:double"
    assert code is not None


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x, "<lambda> cannot be imported by name: define it with def at the top of a module"),
        (functools.partial(operator.add, 1), "partial cannot be imported by name"),
        ([].append, "list.append cannot be imported by name"),
        (json.JSONEncoder.encode, "JSONEncoder.encode cannot be imported by name"),
    ],
)
def test_a_function_that_nodes_cannot_import_is_refused(function, says):
    with pytest.raises(PackagingFailed, match=says):
        named_code(function)


def test_a_function_of_an_interactive_session_is_refused():
    names = {"__name__": "__main__"}
    exec("def typed(x): return x", names)
    with pytest.raises(PackagingFailed, match="typed has no source file: define it in a module"):
        named_code(names["typed"])
    with pytest.raises(PackagingFailed, match="typed has no source file"):
        PickledCalls().pickled((names["typed"], (), {}))


def test_calls_return_what_the_functions_return(own):
    calls = PickledCalls()
    assert call(calls.pickled((own.double, (4,), {"by": 1}))) == 9
    assert call(calls.pickled((functools.partial(own.double, by=2), (4,), {}))) == 10
    assert call(calls.pickled((own.moved, (own.Point(1),), {}))).x == 2
    assert call(calls.pickled((own.Pair, ("first",), {}))).first == "first"
    assert call(calls.pickled((map, (own.double, [1, 2]), {}))) is not None
    assert call(calls.pickled((call_each, ([(own.double, (1,), {}), (math.sqrt, (4.0,), {})],), {}))) == [2, 2.0]
    assert calls.code == named_code(own.double)[1]


def test_a_function_that_the_first_file_imports_is_sent_with_it(own):
    calls = PickledCalls()
    calls.pickled((own.double, (1,), {}))
    assert call(calls.pickled((sys.modules["beside"].half, (3,), {}))) == 1.5


def test_a_script_is_named_by_its_module(own, monkeypatch):
    monkeypatch.setattr(own.double, "__module__", "__main__")
    monkeypatch.setattr(own.Pair, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", own)
    calls = PickledCalls()
    pickled = calls.pickled((own.double, (own.Pair(1),), {}))
    assert b"__main__" not in pickled
    assert pickle.loads(pickled)[0] is own.double


@pytest.mark.parametrize("first", ["another user's function", "an installed function"])
def test_code_that_is_not_sent_is_refused(first, own, tmp_path, monkeypatch):
    other = user_module(tmp_path / "other", monkeypatch, other_functions="def triple(x): return 3 * x")
    calls = PickledCalls()
    calls.pickled((other.triple if first.startswith("another") else math.sqrt, (1,), {}))
    with pytest.raises(PackagingFailed, match=r"the code of double is not sent: .* use another executor"):
        calls.pickled((own.double, (1,), {}))
    calls.pickled((math.sqrt, (1,), {}))


@pytest.mark.parametrize("argument", [bytes(MAX_TASK_BYTES), lambda: 1])
def test_a_first_call_that_fails_sends_no_code(argument, own, tmp_path, monkeypatch):
    other = user_module(tmp_path / "other", monkeypatch, other_functions="def triple(x): return 3 * x")
    calls = PickledCalls()
    with pytest.raises((TooLarge, PackagingFailed)):
        calls.pickled((own.double, (argument,), {}))
    calls.pickled((other.triple, (1,), {}))
    assert calls.code == named_code(other.triple)[1]


def test_arguments_above_the_limit_are_named():
    with pytest.raises(TooLarge, match="for the arguments of sqrt"):
        PickledCalls().pickled((math.sqrt, (bytes(MAX_TASK_BYTES),), {}))


def test_lambdas_of_a_user_are_refused_and_what_cannot_be_pickled_is_an_error(own):
    with pytest.raises(PackagingFailed, match="<lambda> cannot be imported by name"):
        PickledCalls().pickled((own.lambda_of_own, (1,), {}))
    with pytest.raises(PackagingFailed, match=r"Pair\.swap cannot be imported by name"):
        PickledCalls().pickled((own.Pair.swap, (1,), {}))
    with pytest.raises(TypeError, match="cannot pickle"):
        PickledCalls().pickled((math.sqrt, (SimpleNamespace(file=sys.stdout),), {}))


def test_names_of_loads_are_tokens():
    assert load_name("größe_2").startswith("gr--e-2-")
    assert len(load_name("x" * 300)) <= 64
