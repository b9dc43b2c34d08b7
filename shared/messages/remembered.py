"""A pure function that remembers its last answer, and gives it again for the very same arguments.

For values that many decisions in a row have in common and that are dear to compare: what the nodes of a pool come to,
say. Whether they are the same is asked by identity; numbers are compared.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(function: Function) -> Function:
    """The same function, at no cost where nothing has changed."""
    last: tuple[tuple[object, ...], object] | None = None

    def answer(*arguments: object) -> object:
        nonlocal last
        if last is None or not all(map(_is_same, arguments, last[0])):
            last = arguments, function(*arguments)
        return last[1]

    return cast(Function, answer)


def _is_same(mine: object, known: object) -> bool:
    return mine is known or (isinstance(mine, int | float) and mine == known)
