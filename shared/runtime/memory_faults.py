"""What goes wrong on the bus within one process, drawn from a seed."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities, for each message.

    maybe_stored: an append raises MaybeStored, stored or not. duplicate: a fact is stored twice, a work item or a
    plain message comes twice. reorder: a plain message overtakes others. max_delay_turns: how many turns of the
    event loop an append takes at most.
    """

    maybe_stored: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    max_delay_turns: int = 1


class FaultSource:
    """rng: nothing goes wrong without it."""

    def __init__(self, faults: Faults, rng: np.random.Generator | None) -> None:
        self._faults, self._rng = faults, rng

    def answer_lost(self) -> bool:
        return self._happens(self._faults.maybe_stored)

    def message_lost_too(self) -> bool:
        return self._happens(0.5)

    def duplicate(self) -> bool:
        return self._happens(self._faults.duplicate)

    def delay_turns(self) -> int:
        return self._below(self._faults.max_delay_turns)

    def position(self, num_waiting: int) -> int | None:
        """Before which of the waiting messages a new one comes; None: at the end, where it belongs."""
        return self._below(num_waiting + 1) if self._happens(self._faults.reorder) else None

    def _happens(self, probability: float) -> bool:
        return self._rng is not None and probability > 0 and self._rng.random() < probability

    def _below(self, limit: int) -> int:
        return int(self._rng.integers(limit)) if self._rng is not None and limit > 1 else 0
