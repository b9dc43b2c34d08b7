"""Frozen values made cheap: a copy with other fields, and a pure function that keeps its last results."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


def fast_replace(value: Value, **changes: Any) -> Value:
    """`dataclasses.replace` for a frozen dataclass without slots, `__post_init__` or cached properties.

    `replace` sets each of thirty fields separately, in 5 us; this copies them together, in less than 1 us.
    The fold needs it for ledgers of millions of events.
    """
    copy = object.__new__(type(value))
    copied = copy.__dict__
    copied.update(value.__dict__)
    copied.update(changes)
    assert len(copied) == len(value.__dict__), f"{type(value).__name__} has no field of {sorted(changes)}"
    return copy


def memoize_last(function: Function) -> Function:
    """The same function; called again with the same arguments, it returns its last result.

    Objects are compared by identity, because comparing a pool's nodes is expensive; numbers are compared by value.
    """
    return _memoized(function, 1)


def memoize_recent(function: Function) -> Function:
    """As `memoize_last`, with the last few results: of each GPU type of a pool in turn."""
    return _memoized(function, 8)


def _memoized(function: Function, num_kept: int) -> Function:
    recent = deque[tuple[tuple[object, ...], object]](maxlen=num_kept)

    def memoized(*arguments: object) -> object:
        for known, result in recent:
            if all(map(is_same, arguments, known)):
                return result
        result = function(*arguments)
        recent.appendleft((arguments, result))
        return result

    return cast(Function, memoized)


def is_same(new: object, last: object) -> bool:
    """Whether two arguments are the same object, or equal numbers."""
    return new is last or (isinstance(new, int | float) and new == last)
