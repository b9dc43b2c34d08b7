"""The sources that the page reads: a live pool, or an exported ledger."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Protocol

from elasticflow.client.client import Client
from elasticflow.client.ledger import LedgerEntry
from elasticflow.shared.errors import Retry
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.web.pool_history import PoolHistory

# --- past states ---------------------------------------------------------------------------------------
# The states of a ledger's past that a replay asks for: steps near each other fold few messages.

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


# --- sources -------------------------------------------------------------------------------------------

_CHECK_S = 0.5  # between two looks at the connection
_FOLD_AT_ONCE = 200  # messages of a file; viewers are served in between


class Source(Protocol):
    """One ledger. last_sequence: of the ledger; more than the state's while it is still being read.

    comparisons: in JSON, by another policy and the message after which it decides; the last ones.
    """

    title: str
    is_live: bool
    history: PoolHistory
    past: PastStates
    comparisons: dict[tuple[str, int], bytes]
    last_sequence: int
    stale_since_s: float | None

    def now_s(self) -> float: ...

    def entries(self, after_sequence: int, up_to: int) -> AsyncGenerator[LedgerEntry, None]: ...

    async def changed(self) -> None:
        """Return at the next message, or when the connection breaks or is back."""
        ...


class Changes:
    """Wakes all who wait, each time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


class LiveSource:
    """The ledger of a pool. `follow` keeps its history up to date."""

    is_live = True

    def __init__(self, client: Client, clock: Clock) -> None:
        self.title = f"pool {client.endpoint.pool}"
        self.history = PoolHistory()
        self.past = PastStates(self.history, self.entries)
        self.comparisons: dict[tuple[str, int], bytes] = {}
        self.last_sequence = 0
        self.stale_since_s: float | None = None
        self._client, self._clock, self._changes = client, clock, Changes()

    def now_s(self) -> float:
        return self._clock.now_s()

    async def changed(self) -> None:
        await self._changes.wait()

    def entries(self, after_sequence: int, up_to: int) -> AsyncGenerator[LedgerEntry, None]:
        return self._client.entries(after_sequence=after_sequence, up_to=up_to)

    async def follow(self) -> None:
        """Fold the ledger, then each message as it arrives, without end. Raises Stop, for example LedgerBroken."""
        await asyncio.gather(self._watch_connection(), self._fold_again_and_again())

    async def _fold_again_and_again(self) -> None:
        while True:
            with contextlib.suppress(Retry):
                self.last_sequence = await self._client.last_sequence()
                await self._fold()
            await asyncio.sleep(_CHECK_S)

    async def _fold(self) -> None:
        after = self.history.state.sequence
        async with contextlib.aclosing(self._client.entries(after_sequence=after)) as entries:
            async for stored, message in entries:
                self.history.fold(stored.sequence, stored.stored_at_s, message)
                self.last_sequence = max(self.last_sequence, stored.sequence)
                self._changes.tell()
                if stored.sequence % _FOLD_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _watch_connection(self) -> None:
        while True:
            if self._client.is_connected == (self.stale_since_s is not None):
                self.stale_since_s = None if self._client.is_connected else self.now_s()
                self._changes.tell()
            await asyncio.sleep(_CHECK_S)


class RecordedSource:
    """An exported ledger. Its time is that of its last message."""

    is_live = False

    def __init__(self, title: str, recorded: tuple[LedgerEntry, ...]) -> None:
        self.title = title
        self.stale_since_s: float | None = None
        self.history = PoolHistory()
        self.past = PastStates(self.history, partial(_entries_of, recorded))  # no cycle: `fold_all` freezes all
        self.comparisons: dict[tuple[str, int], bytes] = {}
        self.last_sequence = len(recorded)
        self._recorded, self._changes = recorded, Changes()

    def now_s(self) -> float:
        return self.history.last_at_s

    async def changed(self) -> None:
        await self._changes.wait()

    def entries(self, after_sequence: int, up_to: int) -> AsyncGenerator[LedgerEntry, None]:
        return _entries_of(self._recorded, after_sequence, up_to)

    async def fold_all(self) -> None:
        for stored, message in self._recorded:
            self.history.fold(stored.sequence, stored.stored_at_s, message)
            if stored.sequence % _FOLD_AT_ONCE == 0:
                self._changes.tell()
                await asyncio.sleep(0)
        self._changes.tell()
        gc.freeze()  # a full collection would visit all of these messages, for tenths of a second


async def _entries_of(
    recorded: Sequence[LedgerEntry], after_sequence: int, up_to: int
) -> AsyncGenerator[LedgerEntry, None]:
    for entry in recorded[after_sequence:up_to]:
        yield entry
