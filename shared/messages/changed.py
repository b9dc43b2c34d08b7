"""`dataclasses.replace`, several times as fast, for the two values that every step of the fold makes anew."""

from typing import Any, TypeVar

Value = TypeVar("Value")


def changed(value: Value, **changes: Any) -> Value:
    """The value with some fields changed: a frozen dataclass without slots, `__post_init__` or cached properties.

    `replace` sets each field of thirty by itself, 5 us; this copies all of them at once, under 1 us. A ledger of
    millions of events is folded with it.
    """
    copy = object.__new__(type(value))
    copied = copy.__dict__
    copied.update(value.__dict__)
    copied.update(changes)
    assert len(copied) == len(value.__dict__), f"{type(value).__name__} has no field of {sorted(changes)}"
    return copy
