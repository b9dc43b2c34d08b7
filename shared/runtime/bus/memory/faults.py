"""What goes wrong on the in-memory bus, drawn from a seed."""

from collections import Counter
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
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

    def __init__(self, faults: Faults, rng: np.random.Generator | None, num_struck: Counter[str] | None = None) -> None:
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
        """Before which of the waiting messages a new one is delivered; None: behind all of them."""
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
