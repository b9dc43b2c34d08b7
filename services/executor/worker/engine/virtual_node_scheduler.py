"""Runs the calls of one step, one for each micro-batch, and synchronizes them where their gradients are summed.

`LockstepScheduler` runs each call in a cooperative thread. A call pauses at a synchronization point; once all have
paused there, the scheduler does the common work, and resumes them in the same order.

`SequentialScheduler` runs passes through the one loop of a script, which cannot be suspended. Every pass but the last
continues behind `backward()` without effect, since its gradients were moved into the sum. The last pass finds the
gradient of the global batch, and its optimizer steps. If a peer is lost then, the pass runs to its end without effect,
and the scheduler raises PeerLost afterwards: nothing may be raised within a user's loop.
"""

# pyright: strict

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from elasticflow.services.executor.worker.engine.cooperative_thread import CooperativeThreads, Paused, Returned
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, raising_peer_lost
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.errors import Stop


class VirtualNodeScheduler(Protocol):
    running: int | None  # index of the running call
    num_resumed: int  # calls that continue after a synchronization point

    @property
    def has_effect(self) -> bool:
        """Whether the running call takes part in the next synchronization."""
        ...

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]: ...
    def synchronize(self, point: str) -> None: ...
    def note_other_optimizer(self, name: str) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


class MakeScheduler(Protocol):
    """size: number of calls. before_resume(i): runs before call i starts or resumes. at_point(point): runs once all
    calls have reached the synchronization point."""

    def __call__(
        self, size: int, *, before_resume: Callable[[int], None], at_point: Callable[[str], None]
    ) -> VirtualNodeScheduler: ...


@dataclass(eq=False)
class CallsDiverged(Stop):
    """The calls reached different synchronization points."""

    points: str

    MESSAGE: ClassVar[str] = (
        "train() must take the same steps on every part of a global batch, but parts of one reached {points}; "
        'make it independent of the batch, or set reproducible = "fast"'
    )


class LockstepScheduler:
    """on_start: runs first in each thread. threads: to which they return; None: they end with the scheduler."""

    def __init__(
        self,
        size: int,
        *,
        on_start: Callable[[], None],
        before_resume: Callable[[int], None],
        at_point: Callable[[str], None],
        threads: CooperativeThreads | None = None,
    ) -> None:
        self._pool = threads
        self._threads = CooperativeThreads().take(size) if threads is None else threads.take(size)
        for thread in self._threads:
            thread.resume(on_start)
        self._before_resume = before_resume
        self._at_point = at_point
        self.running: int | None = None
        self.num_resumed = size

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of the calls, in order. Raises the first error of a call, or CallsDiverged."""
        resumptions: Sequence[Callable[[], Any] | None] = calls
        while True:
            outcomes = [self._resume(index, call) for index, call in enumerate(resumptions)]
            points = {outcome.point for outcome in outcomes if isinstance(outcome, Paused)}
            values = [outcome.value for outcome in outcomes if isinstance(outcome, Returned)]
            if len(values) == len(calls):
                return values
            if values or len(points) > 1:
                raise CallsDiverged(" and ".join(sorted(points | ({"the end"} if values else set()))))
            self._at_point(points.pop())
            resumptions = [None] * len(calls)

    @property
    def has_effect(self) -> bool:
        return True

    def abandon(self) -> None:
        """End all suspended calls after a failed synchronization."""
        for thread in self._threads:
            thread.abandon()

    def close(self) -> None:
        """Give the threads back, or end them; between two runs."""
        if self._pool is not None:
            self._pool.give_back(self._threads)
        else:
            for thread in self._threads:
                thread.close()
        self._threads = []

    def synchronize(self, point: str) -> None:
        """Suspend the call, from within it, and return after the common work at this point."""
        assert self.running is not None
        self._threads[self.running].pause(point)

    def note_other_optimizer(self, name: str) -> None:
        """Calls of train() that share one are refused where they step it."""

    def _resume(self, index: int, call: Callable[[], Any] | None) -> Paused | Returned:
        self._before_resume(index)
        self.running = index
        try:
            return self._threads[index].resume(call)
        finally:
            self.running = None


class SequentialScheduler:
    """begin_call: runs before each call, with whether it is the last one; returns the synchronization points that the
    call must reach, in order."""

    def __init__(
        self,
        size: int,
        *,
        before_resume: Callable[[int], None],
        at_point: Callable[[str], None],
        begin_call: Callable[[bool], Sequence[str]],
    ) -> None:
        self._last = size - 1
        self._before_resume = before_resume
        self._at_point = at_point
        self._begin_call = begin_call
        self._points: list[str] = []  # of the running call
        self._reached: list[str] = []  # points that the running call has reached
        self._others: list[str] = []  # optimizers that the job does not know, and that the running call has stepped
        self._lost: PeerLost | None = None
        self.running: int | None = None
        self.num_resumed = 1

    def run(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of the calls, in order. Raises PeerLost, or the error of a call."""
        self._lost = None
        return [self._run(index, call) for index, call in enumerate(calls)]

    def _run(self, index: int, call: Callable[[], Any]) -> Any:
        self._before_resume(index)
        self._points = list(self._begin_call(index == self._last))
        self.running, self._reached, self._others = index, [], []
        try:
            value = call()
        finally:
            self.running = None
        if self._lost is not None:
            raise self._lost
        if self._reached != self._points:
            raise _other_points(self._points, self._reached, self._others)
        return value

    def synchronize(self, point: str) -> None:
        """Note the point, from within a call: only the last call does the common work."""
        assert self.running is not None
        self._reached.append(point)
        if self._reached != self._points[: len(self._reached)]:
            raise _other_points(self._points, self._reached, self._others)
        if not self.has_effect:
            return
        try:
            with raising_peer_lost():
                self._at_point(point)
        except PeerLost as lost:
            self._lost = lost
        else:
            self._before_resume(self.running)

    def note_other_optimizer(self, name: str) -> None:
        """Note that the running call has stepped an optimizer that is no state of the job."""
        self._others.append(name)

    @property
    def has_effect(self) -> bool:
        return self.running == self._last and self._lost is None

    def abandon(self) -> None:
        """Return after a failed synchronization if the call has ended, without effect. Raises PeerLost if it still
        runs."""
        if self.running is not None:
            raise PeerLost("the script waits within its loop for a lost peer, and cannot be interrupted")

    def close(self) -> None:
        """No call leaves anything behind."""


_IN_A_CLASS = "a class, whose train() may call backward() several times and whose stateful() returns further optimizers"


def _other_points(points: Sequence[str], reached: Sequence[str], others: Sequence[str]) -> TrainingFailed:
    """others: optimizers that the loop has stepped, and that elastic() did not get."""
    if others:
        return TrainingFailed(
            f"the script's loop stepped an optimizer ({others[0]}) that was not passed to elastic(): workers that join "
            "and checkpoints would not have it, and each part of a batch would step it. Make one optimizer before the "
            "loop, pass it to elastic(), and change its param_groups later; two optimizers, as of a GAN, need "
            f"{_IN_A_CLASS}"
        )
    if not reached:
        return TrainingFailed(
            f"the script's loop took a batch without {' and '.join(points)}, and each batch of the elastic loader is "
            "trained: evaluate within torch.no_grad(), where the loader gives all its data, or take another DataLoader"
        )
    called = f"for each batch, the script's loop must call {' and '.join(points)} once each, in this order; it called "
    if further := [point for point in reached if point not in points]:
        return TrainingFailed(
            f"{called}{' and '.join(reached)}. {further[0]} is that of a further optimizer, as a GAN has: that needs "
            f"{_IN_A_CLASS}. Or make the two optimizers groups of one, and call backward() of the sum of their losses"
        )
    return TrainingFailed(
        f"{called}{' and '.join(reached)}. Remove gradient accumulation: each batch is a part of the global "
        "batch, and gradients are summed over all parts"
    )
