"""Calls that run one after another and meet within the last of them: a script has one loop body for all virtual nodes.

In all passes but the last, what comes after `backward()` acts on nothing: their gradients have been taken away into
the sum. The last one finds the gradient of the global batch, and takes the step. Where a peer is lost in that, the
pass runs to its end without effect too, and the loss is told behind it: nothing may be raised in a user's loop.
"""
# pyright: strict

from collections.abc import Callable, Sequence
from typing import Any

from services.executor.worker.groups import PeerLost, noticing_lost_peers
from services.executor.worker.training_function import TrainingFailed


class InTurn:
    """before(i): before call i begins, or goes on after a meeting. meeting(point): when all have been there.
    points: what each call comes to, in order."""

    def __init__(
        self,
        size: int,
        *,
        before: Callable[[int], None],
        meeting: Callable[[str], None],
        points: Sequence[str],
    ) -> None:
        self._last = size - 1
        self._before = before
        self._meeting = meeting
        self._points = list(points)
        self._came: list[str] = []  # to these points, the call that runs
        self._lost: PeerLost | None = None
        self.running: int | None = None  # the call whose turn it is
        self.num_going_on = 1  # after a meeting

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What the calls return, in order. Raises PeerLost, or what a call raises."""
        self._lost = None
        return [self._run(index, call) for index, call in enumerate(calls)]

    def _run(self, index: int, call: Callable[[], Any]) -> Any:
        self._before(index)
        self.running, self._came = index, []
        try:
            value = call()
        finally:
            self.running = None
        if self._lost is not None:
            raise self._lost
        if self._came != self._points:
            raise _other_points(self._points, self._came)
        return value

    def meet(self, point: str) -> None:
        """From within a call."""
        assert self.running is not None
        self._came.append(point)
        if self._came != self._points[: len(self._came)]:
            raise _other_points(self._points, self._came)
        if self.running < self._last or self._lost is not None:
            return
        try:
            with noticing_lost_peers():
                self._meeting(point)
        except PeerLost as lost:
            self._lost = lost
        else:
            self._before(self.running)

    def abandon(self) -> None:
        """After a meeting that failed: the call has come to its end without effect. Raises PeerLost if it has not."""
        if self.running is not None:
            raise PeerLost(
                "the script waits within its loop, for somebody who is lost and shows no sign of it"
            )

    def close(self) -> None:
        """Nothing is left of any call."""


def _other_points(points: Sequence[str], came: Sequence[str]) -> TrainingFailed:
    return TrainingFailed(
        f"for each batch, the script's loop must come to {' and '.join(points)} once each, in this order; it came to "
        f"{' and '.join(came) or 'neither'}. It needs no accumulation of gradients: the batch it gets is a part of "
        "the global batch, and gradients are those of all parts"
    )
