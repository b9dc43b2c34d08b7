"""Several calls of one function, as coroutines: one at a time.

Each runs until it meets the others at a point, or ends. When all are there, what is due is done once, on the thread
that called `run`; then they go on, in the same order. That way a user's `train`, written for one device, is run for
several virtual nodes whose gradients must be summed in its middle.
"""
# pyright: strict

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from services.executor.worker.coroutine import Arrived, Coroutine, Returned
from shared.errors import Stop


@dataclass(eq=False)
class OutOfStep(Stop):
    """The calls did not come to the same points."""

    points: str

    SENTENCE: ClassVar[str] = (
        "train() must do the same steps on every part of a global batch, but parts of one came to {points}; "
        'make it independent of the batch, or set reproducible = "fast"'
    )


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
        self._coroutines = [Coroutine("virtual-node") for _ in range(size)]
        for coroutine in self._coroutines:
            coroutine.go_on(on_start)
        self._before = before
        self._meeting = meeting
        self.running: int | None = None  # the call whose turn it is
        self.num_going_on = size  # after a meeting

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the calls return, in order. Raises what the first of them raises, or OutOfStep."""
        due: Sequence[Callable[[], Any] | None] = calls
        while True:
            outcomes = [self._go_on(index, call) for index, call in enumerate(due)]
            points = {outcome.point for outcome in outcomes if isinstance(outcome, Arrived)}
            values = [outcome.value for outcome in outcomes if isinstance(outcome, Returned)]
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

    def _go_on(self, index: int, call: Callable[[], Any] | None) -> Arrived | Returned:
        self._before(index)
        self.running = index
        try:
            return self._coroutines[index].go_on(call)
        finally:
            self.running = None
