"""Several calls of one function, as coroutines that need not know it: each in a thread of its own, one at a time.

Each runs until it meets the others at a point, or ends. When all are there, what is due is done once, on the thread
that called `run`; then they go on, in the same order. That way a user's `train`, written for one device, is run for
several virtual nodes whose gradients must be summed in its middle.
"""
# pyright: strict

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, ClassVar

from shared.errors import Stop


@dataclass(eq=False)
class OutOfStep(Stop):
    """The calls did not come to the same points."""

    points: str

    SENTENCE: ClassVar[str] = (
        "train() must do the same steps on every part of a global batch, but parts of one came to {points}; "
        'make it independent of the batch, or set reproducible = "fast"'
    )


class _Abandoned(BaseException):
    """Raised within a call that will not go on: what it has done so far is taken back by others."""


@dataclass(frozen=True, slots=True)
class _Arrived:
    point: str


@dataclass(frozen=True, slots=True)
class _Returned:
    value: Any


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


class _Coroutine(threading.Thread):
    """One of the threads: it sleeps unless it is told to go on."""

    def __init__(self) -> None:
        super().__init__(name="virtual-node", daemon=True)
        self._due: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[_Arrived | _Returned | _Raised] = SimpleQueue()
        self._waits = False  # within a call, at a point
        self._abandoned = False
        self.start()

    def run(self) -> None:
        while (call := self._due.get()) is not None:
            try:
                outcome = _Returned(call())
            except BaseException as error:  # it is raised again where the call was due
                outcome = _Raised(error)
            self._outcomes.put(outcome)
            del call, outcome  # and what they hold

    def go_on(self, call: Callable[[], Any] | None) -> _Arrived | _Returned:
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
        self._outcomes.put(_Arrived(point))
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


class Lockstep:
    """on_start: what each thread does first. before(i): before call i goes on. meeting(point): when all are there."""

    def __init__(
        self,
        size: int,
        *,
        on_start: Callable[[], None],
        before: Callable[[int], None],
        meeting: Callable[[str], None],
    ) -> None:
        self._coroutines = [_Coroutine() for _ in range(size)]
        for coroutine in self._coroutines:
            coroutine.go_on(on_start)
        self._before = before
        self._meeting = meeting
        self.running: int | None = None  # the call whose turn it is

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the calls return, in order. Raises what the first of them raises, or OutOfStep."""
        due: Sequence[Callable[[], Any] | None] = calls
        while True:
            outcomes = [self._go_on(index, call) for index, call in enumerate(due)]
            points = {outcome.point for outcome in outcomes if isinstance(outcome, _Arrived)}
            values = [outcome.value for outcome in outcomes if isinstance(outcome, _Returned)]
            if len(values) == len(calls):
                return values
            if values or len(points) > 1:
                raise OutOfStep(" and ".join(sorted(points | ({"the end"} if values else set()))))
            self._meeting(points.pop())
            due = [None] * len(calls)

    def abandon(self) -> None:
        """After a meeting that failed: end all calls where they wait, as if they had not begun."""
        for coroutine in self._coroutines:
            coroutine.abandon()

    def close(self) -> None:
        """End the threads; between two runs."""
        for coroutine in self._coroutines:
            coroutine.close()

    def meet(self, point: str) -> None:
        """From within a call: return when all calls have come here and the meeting is over."""
        assert self.running is not None
        self._coroutines[self.running].arrive(point)

    def _go_on(self, index: int, call: Callable[[], Any] | None) -> _Arrived | _Returned:
        self._before(index)
        self.running = index
        try:
            return self._coroutines[index].go_on(call)
        finally:
            self.running = None
