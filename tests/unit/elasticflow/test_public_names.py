"""The names of `elasticflow`: each can be imported, type checkers see it, and no public signature needs another one."""

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import elasticflow
from elasticflow.sdk import synchronous

SOURCE = ast.parse(Path(elasticflow.__file__).read_text())
FUNCTIONS = [name for name in elasticflow.__all__ if inspect.isfunction(getattr(elasticflow, name))]


def test_each_name_is_what_type_checkers_see():
    seen = {
        alias.name: node.module
        for block in SOURCE.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen) == sorted(set(elasticflow.__all__) - {"__version__"})
    for name, module in seen.items():
        assert f"elasticflow.{elasticflow._MODULES[name]}" == module


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'hold'"):
        elasticflow.hold  # noqa: B018
    assert set(elasticflow.__all__) <= set(dir(elasticflow))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_all_types_in_public_signatures_are_public(function):
    public = {getattr(elasticflow, name) for name in elasticflow.__all__ if name != "__version__"}
    hints = typing.get_type_hints(
        getattr(elasticflow, function),
        localns={"nn": types.SimpleNamespace(Module=object), "Optimizer": object, "Tensor": object},
    )
    used = {cls for hint in hints.values() for cls in classes_in(hint)}
    assert {cls for cls in used if cls.__module__.startswith("elasticflow")} <= public


def classes_in(hint: typing.Any) -> Iterator[type]:
    if inspect.isclass(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from classes_in(inner)


def test_all_calls_of_the_synchronous_api_are_public():
    own = {
        name
        for name, value in vars(synchronous).items()
        if inspect.isfunction(value) and value.__module__ == synchronous.__name__
    }
    assert {name for name in own if not name.startswith("_")} <= set(elasticflow.__all__)
