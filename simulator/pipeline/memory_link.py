"""How a client reaches the broker of an in-memory bus: at once, or over a network that delays, loses and is cut."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from elasticflow.shared.errors import BusClosed, ElasticFlowError

# --- What goes wrong on the in-memory bus, drawn from a seed -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFaults:
    """Probabilities, for each message.

    maybe_stored: an append raises MaybeStored, stored or not. duplicate: an event is stored twice, a work item or a
    plain message is delivered twice. reorder: a plain message overtakes others.
    storage_full: an append raises StorageFull and stores nothing. failed_read: a read raises Unavailable.
    failed_object: writing an object raises Unavailable, stored or not.
    max_delay_turns: an append takes at most so many turns of the event loop (`DirectLink`).
    max_delay_s: each way between a client and the broker takes at most so long (`DelayedLink`).
    duplicate_within_s: the second copy of an event arrives at most so much later (`DelayedLink`).
    """

    maybe_stored: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    storage_full: float = 0.0
    failed_read: float = 0.0
    failed_object: float = 0.0
    max_delay_turns: int = 1
    max_delay_s: float = 0.0
    duplicate_within_s: float = 0.0


class FaultSource:
    """rng: nothing goes wrong without it. num_struck: counts what went wrong, by kind."""

    def __init__(
        self, faults: LinkFaults, rng: np.random.Generator | None, num_struck: Counter[str] | None = None
    ) -> None:
        self._faults, self._rng = faults, rng
        self._num_struck = Counter[str]() if num_struck is None else num_struck

    def is_answer_lost(self) -> bool:
        return self._happens("lost answer", self._faults.maybe_stored)

    def is_request_lost(self) -> bool:
        """The request of a lost answer did not arrive either."""
        return self._happens("lost request", 0.5)

    def is_storage_full(self) -> bool:
        return self._happens("full storage", self._faults.storage_full)

    def is_read_failed(self) -> bool:
        return self._happens("failed read", self._faults.failed_read)

    def is_object_failed(self) -> bool:
        return self._happens("failed object", self._faults.failed_object)

    def is_duplicated(self) -> bool:
        return self._happens("duplicate", self._faults.duplicate)

    def delay_turns(self) -> int:
        return self._below(self._faults.max_delay_turns)

    def delay_s(self) -> float:
        return self._up_to(self._faults.max_delay_s)

    def duplicate_delay_s(self) -> float:
        return self._up_to(self._faults.duplicate_within_s)

    def position(self, num_waiting: int) -> int | None:
        """The index among the waiting messages at which a new one is delivered; None: behind all of them."""
        return self._below(num_waiting + 1) if self._happens("reordered", self._faults.reorder) else None

    def _happens(self, kind: str, probability: float) -> bool:
        happens = self._rng is not None and probability > 0 and self._rng.random() < probability
        if happens:
            self._num_struck[kind] += 1
        return happens

    def _below(self, limit: int) -> int:
        return int(self._rng.integers(limit)) if self._rng is not None and limit > 1 else 0

    def _up_to(self, longest_s: float) -> float:
        return longest_s * self._rng.random() if self._rng is not None else 0.0


# --- link ----------------------------------------------------------------------------------------------

T = TypeVar("T")


class Link(Protocol):
    """A client's connection. receives: what the broker sends arrives."""

    receives: bool

    async def call(
        self,
        operation: Callable[[], T],
        timeout_s: float,
        no_answer: ElasticFlowError,
        *,
        fallible: bool = False,
    ) -> T:
        """Run the operation at the broker and return its result. Raises what it raises; no_answer after timeout_s.

        fallible: the answer may be lost to a drawn fault, with the request or without.
        """
        ...

    async def delivery(self) -> None:
        """Return when what the broker sends now has arrived here."""
        ...

    def send(self, operation: Callable[[], object]) -> None:
        """Run the operation at the broker, best effort: it is lost while the link is cut."""
        ...

    def send_again(self, operation: Callable[[], object]) -> None:
        """Run the operation at the broker once more, some time later: a writer without an answer repeats itself."""
        ...

    def close(self) -> None:
        """The client ends. What it sent already still arrives."""
        ...


class DirectLink:
    """The broker in the same process: an operation runs after some turns of the event loop."""

    def __init__(self, faults: FaultSource) -> None:
        self._faults = faults
        self.receives = True
        self._closed = False

    async def call(
        self,
        operation: Callable[[], T],
        timeout_s: float,
        no_answer: ElasticFlowError,
        *,
        fallible: bool = False,
    ) -> T:
        if not fallible:
            return operation()
        for _ in range(1 + self._faults.delay_turns()):
            await asyncio.sleep(0)
        if self._closed:
            raise BusClosed("by the client itself")
        is_lost = self._faults.is_answer_lost()
        if is_lost and self._faults.is_request_lost():
            raise no_answer
        result = operation()
        if is_lost:
            raise no_answer
        return result

    async def delivery(self) -> None:
        return

    def send(self, operation: Callable[[], object]) -> None:
        operation()

    def send_again(self, operation: Callable[[], object]) -> None:
        operation()

    def close(self) -> None:
        self._closed = True


class DelayedLink:
    """A network: each way takes a drawn delay. While a way is cut, what would take it waits for the repair.

    A request that waited longer than its timeout still arrives afterwards: its sender has received no answer, and the
    message is stored late. A closed link is never repaired: then what waits in it is lost. On its way a message is in a
    context of its own: it arrives even if the process that sent it is paused.
    """

    def __init__(self, faults: FaultSource) -> None:
        self._faults = faults
        self.sends, self.receives = True, True
        self._closed = False
        self._waiting: list[tuple[Callable[[], object], Callable[[], bool]]] = []

    async def call(
        self,
        operation: Callable[[], T],
        timeout_s: float,
        no_answer: ElasticFlowError,
        *,
        fallible: bool = False,
    ) -> T:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[T | None, ElasticFlowError | None]] = loop.create_future()
        is_lost = fallible and self._faults.is_answer_lost()

        def arrive() -> None:
            result, error = None, None
            try:
                result = operation()
            except ElasticFlowError as failed:
                error = failed
            if not is_lost:
                self._carry(lambda: answer.done() or answer.set_result((result, error)), self._is_received)

        if not (is_lost and self._faults.is_request_lost()):
            self._carry(arrive, self._is_sent)
        timer = loop.call_later(timeout_s, lambda: answer.done() or answer.set_result((None, no_answer)))
        try:
            result, error = await answer
        finally:
            timer.cancel()
        if error is not None:
            raise error
        return result  # pyright: ignore[reportReturnType] - of an operation that has succeeded

    async def delivery(self) -> None:
        arrived = asyncio.get_running_loop().create_future()
        self._carry(lambda: arrived.done() or arrived.set_result(None), self._is_received)
        await arrived

    def send(self, operation: Callable[[], object]) -> None:
        if self.sends and not self._closed:
            asyncio.get_running_loop().call_later(self._faults.delay_s(), operation, context=Context())

    def send_again(self, operation: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(self._faults.duplicate_delay_s(), operation, context=Context())

    @property
    def up(self) -> bool:
        """Messages pass in both directions."""
        return self.sends and self.receives

    def cut(self, *, sends: bool = False, receives: bool = False) -> None:
        """sends, receives: the way that still works."""
        self.sends, self.receives = self.sends and sends, self.receives and receives

    def repair(self) -> None:
        self.sends = self.receives = not self._closed
        waiting, self._waiting = self._waiting, []
        for arrive, is_open in waiting:
            self._pass(arrive, is_open)

    def close(self) -> None:
        self._closed = True
        if not self.up:
            self._waiting.clear()

    def _is_sent(self) -> bool:
        return self.sends

    def _is_received(self) -> bool:
        return self.receives

    def _carry(self, arrive: Callable[[], object], is_open: Callable[[], bool]) -> None:
        """is_open: whether the way of this message works."""
        delay_s = self._faults.delay_s()
        asyncio.get_running_loop().call_later(delay_s, self._pass, arrive, is_open, context=Context())

    def _pass(self, arrive: Callable[[], object], is_open: Callable[[], bool]) -> None:
        if is_open():
            arrive()
        elif not self._closed:
            self._waiting.append((arrive, is_open))
