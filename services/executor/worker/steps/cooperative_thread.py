"""A thread that runs only between `resume` and its next `pause`, so that a call can be suspended in its middle.

The engine runs user code this way wherever it has work to do between two lines of that code.
"""
# pyright: strict

import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


class _Abandoned(BaseException):
    """Ends a suspended call that will not be resumed; the engine rolls its effects back."""


@dataclass(frozen=True, slots=True)
class Paused:
    point: str


@dataclass(frozen=True, slots=True)
class Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


class CooperativeThread(threading.Thread):
    """Runs one call after another, each from pause to pause, with the context variables of the thread that made it:
    among them are the settings of torch's compiler."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._context = copy_context()
        self._resumptions: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Paused | Returned | _Raised] = SimpleQueue()
        self._is_paused = False
        self._is_abandoned = False
        self.start()

    def run(self) -> None:
        self._context.run(self._run_calls)

    def _run_calls(self) -> None:
        while (call := self._resumptions.get()) is not None:
            try:
                outcome = Returned(call())
            except BaseException as error:  # `resume` raises it
                outcome = _Raised(error)
            self._outcomes.put(outcome)
            del call, outcome  # and what they refer to

    def resume(self, call: Callable[[], Any] | None) -> Paused | Returned:
        """Run to the next pause or the end. call: None continues the suspended one. Raises what the call raises."""
        self._resumptions.put(call)
        outcome = self._outcomes.get()
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def pause(self, point: str) -> None:
        """From within the call: suspend it until the next `resume`."""
        self._is_paused = True
        self._outcomes.put(Paused(point))
        self._resumptions.get()
        self._is_paused = False
        if self._is_abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """End the suspended call, if there is one."""
        if self._is_paused:
            self._is_abandoned = True
            self._resumptions.put(None)
            self._outcomes.get()
            self._is_abandoned = False

    def close(self) -> None:
        """Between two calls."""
        self._resumptions.put(None)
