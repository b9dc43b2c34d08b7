"""Typed values out of a TOML table; an error names the place and the key."""

import math
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypeVar, cast

from elasticflow.shared.errors import BadSettings

Table = dict[str, Any]
_Choice = TypeVar("_Choice", bound=StrEnum)


def check_keys(table: Table, known: set[str], where: str) -> None:
    """BadSettings for a key that is not known."""
    if unknown := sorted(table.keys() - known):
        raise BadSettings((f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}",))


def check_once(names: Iterable[str], what: str) -> None:
    """BadSettings for a name that is there twice."""
    if doubles := [name for name, count in Counter(names).items() if count > 1]:
        raise BadSettings((f"{what} {', '.join(doubles)} is there twice",))


def tables(value: object, where: str) -> list[Table]:
    """A list of tables; none if there is no value."""
    items = cast(list[object], value) if isinstance(value, list) else []
    if not all(isinstance(item, dict) for item in items) or (value is not None and not isinstance(value, list)):
        raise BadSettings((f"{where}: must be a list of tables",))
    return cast(list[Table], items)


def text(table: Table, key: str, where: str, *, may_be_empty: bool = False) -> str:
    """A text under this key."""
    value = table.get(key)
    if not isinstance(value, str) or not (value or may_be_empty):
        raise BadSettings((f"{where}: {key} must be a text, not {value!r}",))
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """A list of texts."""
    items = cast(list[object], value) if isinstance(value, list) else [None]
    if not all(isinstance(item, str) and item for item in items):
        raise BadSettings((f"{where}: must be a list of texts, not {value!r}",))
    return tuple(cast(list[str], items))


def number(value: object, where: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadSettings((f"{where}: must be a number, not {value!r}",))
    return float(value)


def positive(table: Table, key: str, where: str) -> float | None:
    """A number above 0; None without the key."""
    if key not in table:
        return None
    value = number(table[key], f"{where}: {key}")
    if value <= 0:
        raise BadSettings((f"{where}: {key} must be more than 0, not {value:g}",))
    return value


def whole(value: object, where: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadSettings((f"{where}: must be a whole number of at least 1, not {value!r}",))
    return value


def choice(kind: type[_Choice], value: object, where: str) -> _Choice:
    """A member of an enumeration."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(choice.value) for choice in kind)
        raise BadSettings((f"{where}: must be one of {known}, not {value!r}",)) from None


def number_range(value: object, where: str) -> tuple[float, float]:
    """Two numbers, the least first."""
    items = cast(list[object], value) if isinstance(value, list) else []
    if len(items) != 2:
        raise BadSettings((f"{where}: must be a least and a greatest number, not {value!r}",))
    low, high = (number(item, where) for item in items)
    if low > high:
        raise BadSettings((f"{where}: {low:g} is more than {high:g}",))
    return low, high
