"""Where the page reads: a live pool, or an exported ledger."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Protocol

from elasticflow.client.client import Client
from elasticflow.client.ledger import LedgerEntry
from elasticflow.shared.errors import Retry
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.web.past_states import PastStates
from elasticflow.web.pool_history import PoolHistory

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
