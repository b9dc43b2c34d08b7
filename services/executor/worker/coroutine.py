"""A call that can be left in its middle and gone back to, and need not know it: it has a thread of its own, which
sleeps unless it is told to go on. Users' code is run that way where the engine has something to do between its lines.
"""
# pyright: strict

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


class _Abandoned(BaseException):
    """Raised within a call that will not go on: what it has done so far is taken back by others."""


@dataclass(frozen=True, slots=True)
class Arrived:
    point: str


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


class Coroutine(threading.Thread):
    """One call after another, each from point to point. name: of its thread."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._due: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Arrived | Returned | _Raised] = SimpleQueue()
        self._waits = False  # within a call, at a point
        self._abandoned = False
        self.start()

    def run(self) -> None:
        while (call := self._due.get()) is not None:
            try:
                outcome = Returned(call())
            except BaseException as error:  # it is raised again where the call was due
                outcome = _Raised(error)
            self._outcomes.put(outcome)
            del call, outcome  # and what they hold

    def go_on(self, call: Callable[[], Any] | None) -> Arrived | Returned:
        """Until the next point, or the end. call: what to begin with; None: from the point where it is. Raises what
        is raised there."""
        self._due.put(call)
        outcome = self._outcomes.get()
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def arrive(self, point: str) -> None:
        """From within the call."""
        self._waits = True
        self._outcomes.put(Arrived(point))
        self._due.get()
        self._waits = False
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End the call at the point where it waits, if it does."""
        if self._waits:
            self._abandoned = True
            self._due.put(None)
            self._outcomes.get()
            self._abandoned = False

    def close(self) -> None:
        """Between two calls."""
        self._due.put(None)
