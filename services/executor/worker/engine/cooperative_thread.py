"""A thread that runs only between `resume` and its next `pause`, so that a call can be suspended in its middle.

The engine runs user code this way wherever it has work to do between two lines of that code. Libraries keep plans and
memory for each thread, such as those of cuDNN for convolutions, so that a thread is used again.
"""

# pyright: strict

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from elasticflow.services.executor.worker.process.users_process import PROCESS


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

    ends_with_process = True  # see `exit_handlers`

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.enter_context()
        self._resumptions: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Paused | Returned | _Raised] = SimpleQueue()
        self._is_paused = False
        self._is_abandoned = False
        self._is_within_call = False
        self.start()

    def enter_context(self) -> None:
        """Give later calls the context variables of the present thread; for use between two calls."""
        self._context = copy_context()

    @property
    def is_within_call(self) -> bool:
        """Running, stuck or suspended."""
        return self._is_within_call

    def run(self) -> None:
        self._daemonic = False  # threads that users' code starts here inherit it, as from the main thread
        while (call := self._resumptions.get()) is not None:
            try:
                outcome = Returned(self._context.run(call))
            except BaseException as error:  # `resume` raises it
                PROCESS.end_if_forked(error)
                outcome = _Raised(error)
            PROCESS.end_if_forked()
            self._outcomes.put(outcome)
            del call, outcome  # and what they refer to

    def resume(self, call: Callable[[], Any] | None) -> Paused | Returned:
        """Run to the next pause or the end. call: None continues the suspended one. Raises what the call raises."""
        self._is_within_call = True
        self._resumptions.put(call)
        outcome = self._outcomes.get()
        self._is_within_call = isinstance(outcome, Paused)
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def pause(self, point: str) -> None:
        """Suspend the call, from within it, until the next `resume`."""
        PROCESS.end_if_forked()
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
            self._is_within_call = isinstance(self._outcomes.get(), Paused)
            self._is_abandoned = False

    def close(self) -> None:
        """End the thread, between two calls."""
        self._resumptions.put(None)


class CooperativeThreads:
    """The threads of a process that have no call now."""

    def __init__(self) -> None:
        self._idle: list[CooperativeThread] = []

    def take(self, size: int) -> list[CooperativeThread]:
        """Return so many threads, with the context variables of the present thread."""
        taken, self._idle = self._idle[:size], self._idle[size:]
        for thread in taken:
            thread.enter_context()
        return taken + [CooperativeThread("virtual-node") for _ in range(size - len(taken))]

    def give_back(self, threads: Sequence[CooperativeThread]) -> None:
        """One that is still within a call ends after it: its user has abandoned it."""
        self._idle = [thread for thread in threads if not thread.is_within_call] + self._idle
        for thread in threads:
            if thread.is_within_call:
                thread.close()


THREADS = CooperativeThreads()
