"""The states of a ledger's past that a replay asks for: steps near each other fold few messages."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from elasticflow.client.ledger import LedgerEntry
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.pool_history import PoolHistory

_KEEP_EVERY = 64  # messages between two states that are kept on the way to one that was asked for
_MAX_STATES = 128
_MAX_ENTRIES = 8_192
_AT_ONCE = 256  # messages without a pause for other tasks

Entries = Callable[[int, int], AsyncGenerator[LedgerEntry, None]]  # after a sequence, up to another


class PastStates:
    """Keeps the states that were asked for last, states on the way to them, and the messages between them."""

    def __init__(self, history: PoolHistory, entries: Entries) -> None:
        self._history, self._entries = history, entries
        self._states: dict[int, PoolState] = {}  # by sequence, the last used at the end
        self._read: list[LedgerEntry] = []  # consecutive ones
        self._read_after = 0
        self._lock = asyncio.Lock()

    def known(self, sequence: int) -> PoolState | None:
        """The state after this message, if it was asked for lately."""
        return self._states.get(sequence)

    async def at_time(self, at_s: float) -> PoolState:
        return await self.at(self._history.sequence_at(at_s))

    async def at(self, sequence: int) -> PoolState:
        """The state after this message, or after the last one that is folded."""
        sequence = min(sequence, self._history.state.sequence)
        async with self._lock:
            state = self._nearest(sequence)
            for stored, message in await self._entries_between(state.sequence, sequence):
                state = ledger_fold.evolve(state, message, stored.sequence)
                if stored.sequence % _KEEP_EVERY == 0:
                    self._keep(state)
                if stored.sequence % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._keep(state)
            return state

    def _nearest(self, sequence: int) -> PoolState:
        """The last state up to this sequence from which it can be folded."""
        nearest = max((each for each in self._states if each <= sequence), default=-1)
        if nearest >= self._history.checkpoints.last_sequence(sequence):
            return self._states[nearest]
        return self._history.checkpoints.last_state(sequence)

    def _keep(self, state: PoolState) -> None:
        self._states.pop(state.sequence, None)
        self._states[state.sequence] = state
        if len(self._states) > _MAX_STATES:
            del self._states[next(iter(self._states))]

    async def _entries_between(self, after: int, up_to: int) -> list[LedgerEntry]:
        if after >= up_to:
            return []
        end = self._read[-1][0].sequence if self._read else -1
        if not self._read_after <= after <= end:
            self._read, self._read_after, end = [], after, after
        if up_to > end:
            async with contextlib.aclosing(self._entries(end, up_to)) as entries:
                async for entry in entries:
                    self._read.append(entry)
        found = [entry for entry in self._read if after < entry[0].sequence <= up_to]
        if len(self._read) > _MAX_ENTRIES:
            self._read_after = self._read[-_MAX_ENTRIES - 1][0].sequence
            del self._read[:-_MAX_ENTRIES]
        return found
