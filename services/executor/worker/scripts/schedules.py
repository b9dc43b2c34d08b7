"""Schedules of a script: they step once for each optimizer step, although its loop calls them in every pass."""

from collections.abc import Callable
from typing import Any


def step_only_if(may_step: Callable[[], bool], each: Any) -> None:
    """Make the object's `step`, if it has one, act only then.

    A subclass does this, because torch's schedules save all their attributes as state.
    """
    kind = type(each)
    if not hasattr(kind, "step"):
        return

    def step(schedule: Any, *args: Any, **kwargs: Any) -> None:
        if may_step():
            kind.step(schedule, *args, **kwargs)

    each.__class__ = type(kind.__name__, (kind,), {"step": step})
