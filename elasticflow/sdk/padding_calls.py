"""What nodes execute for `PaddingExecutor` and the joblib backend: calls of functions that are imported by name."""

import pickle
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]  # a function and its arguments


def call(pickled: bytes) -> Any:
    """The task function of these loads. pickled: a Call."""
    function, args, kwargs = pickle.loads(pickled)
    return function(*args, **kwargs)


def call_each(calls: Iterable[Call]) -> list[Any]:
    """Several calls as one task."""
    return [function(*args, **kwargs) for function, args, kwargs in calls]


def imported(name: str) -> Any:
    """A function or class of the code that was sent. name: "package.module:function"."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
