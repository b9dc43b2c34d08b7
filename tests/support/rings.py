"""Parameters of a test of which a few run each day, and all each night."""

from collections.abc import Iterable
from typing import Any

import pytest

NIGHTLY = pytest.mark.nightly("another parameter of a test that runs with a few of them each day")


def few_daily(values: Iterable[Any], number: int) -> list[Any]:
    """The first ones run each day."""
    each_day, each_night = (values := list(values))[:number], values[number:]
    return [*each_day, *map(_nightly, each_night)]


def _nightly(value: Any) -> Any:
    """A parameter, or several as one, which may have marks already."""
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, marks=(*value.marks, NIGHTLY), id=value.id)
    return pytest.param(*value, marks=NIGHTLY) if isinstance(value, tuple) else pytest.param(value, marks=NIGHTLY)
