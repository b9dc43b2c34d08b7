"""A pool as its tenant sees it: read from the views that the monitor stores, without the ledger (docs/adr/0071)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from elasticflow.client.replies import CausedEvent
from elasticflow.errors import KeysUnusable, NoViews
from elasticflow.history.job_history import HistoryEntry
from elasticflow.history.stored_history import KeptEvent, StoredHistory
from elasticflow.shared.errors import LedgerUnusable, NotPermitted, Retry, UnknownStream
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus, Value, with_retry
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.tenant_view import (
    LARGE_BODY_BYTES,
    AsOf,
    PoolPart,
    StoredView,
    TenantPart,
    decode_small,
    seen_state,
)
from elasticflow.times import clock_time, duration_in_words

STALE_AFTER_S = 15.0  # the monitor says every few seconds up to where the views hold
SEEN_WITHIN_S = 2.0
_POLL_S = 2.0  # without news
_FIRST_WAIT_S = 0.005  # news arrives before it is stored
T = TypeVar("T")


class TenantView:
    """The view of one tenant of one pool."""

    def __init__(self, bus: Bus, pool: str, tenant: str) -> None:
        self._bus, self._pool, self._tenant = bus, pool, tenant
        self._bucket = streams.view_bucket(pool)
        self._as_of: AsOf | None = None
        self._num_left_out = 0

    def notes(self, now_s: float) -> tuple[str, ...]:
        """What a reader must know of the view that was read last: how old it is, and what it lacks."""
        found: list[str] = []
        as_of = self._as_of
        if as_of is not None and now_s - as_of.at_s > STALE_AFTER_S:
            age = duration_in_words(now_s - as_of.at_s)
            found.append(
                f"as of {clock_time(as_of.at_s, now_s=now_s)}, {age} ago (ledger at {as_of.sequence}): the monitor of "
                f"pool {self._pool} has stored no newer view since"
            )
        if self._num_left_out:
            found.append(f"{self._num_left_out} live jobs are left out: they do not fit into one message")
        return tuple(found)

    async def state(self) -> PoolState:
        """The pool now, without what other tenants do. Raises NoViews, KeysUnusable, LedgerUnusable, Unavailable."""
        return (await with_retry(self._read_state))[1]

    async def states(self) -> AsyncGenerator[PoolState, None]:
        """The pool now and after every change that is stored, without end."""
        changes = self._changes(streams.tenant_view_key(self._tenant), self._read_state)
        async with contextlib.aclosing(changes):
            async for state in changes:
                yield state

    async def history(self, name: str) -> tuple[HistoryEntry, ...]:
        """What is stored of a job or padding load; () of an unknown one."""
        await self._read_as_of()
        return (await with_retry(self._read_history, name))[1].entries

    async def events(self, name: str) -> list[KeptEvent]:
        """The newest events about a job or load of the kinds that clients wait for."""
        return (await with_retry(self._read_history, name))[1].decoded_events()

    async def new_events(self, name: str) -> AsyncGenerator[CausedEvent, None]:
        """The events that are stored from now on, without end."""
        as_of, (_, history) = await self._read_as_of(), await with_retry(self._read_history, name)
        return self._events_after(name, max(as_of.sequence, history.sequence))

    async def until_seen(self, name: str, reply: object) -> None:
        """Wait until the view has this reply, so that the next command finds it there; but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_WITHIN_S), contextlib.aclosing(self._events_after(name, 0)) as events:
                async for event, _ in events:
                    if type(event) is type(reply) and getattr(event, "at_s", 0.0) == getattr(reply, "at_s", 0.0):
                        return

    async def _events_after(self, name: str, sequence: int) -> AsyncGenerator[CausedEvent, None]:
        async def read() -> tuple[object, StoredHistory]:
            return await self._read_history(name)

        changes = self._changes(streams.history_key(self._tenant, name), read)
        async with contextlib.aclosing(changes):
            async for history in changes:
                for kept in history.decoded_events():
                    if kept.sequence > sequence:
                        yield CausedEvent(kept.event, kept.queue_sequence)
                sequence = max(sequence, history.sequence)

    async def _changes(self, key: str, read: Callable[[], Awaitable[tuple[object, T]]]) -> AsyncGenerator[T, None]:
        """The value that is read now, and each time that its mark is another one. key: its changes wake the reader."""
        subscription = await self._bus.subscribe(streams.value_subject(self._bucket, key))
        news = asyncio.ensure_future(anext(subscription))
        last: object = None
        wait_s = _FIRST_WAIT_S
        try:
            while True:
                with contextlib.suppress(Retry):
                    mark, value = await read()
                    if mark != last:
                        last, wait_s = mark, _FIRST_WAIT_S
                        yield value
                await asyncio.wait({news}, timeout=wait_s)
                wait_s = min(2 * wait_s, _POLL_S)
                if news.done():
                    news.result()
                    news, wait_s = asyncio.ensure_future(anext(subscription)), _FIRST_WAIT_S
        finally:
            news.cancel()
            await asyncio.gather(news, return_exceptions=True)
            with contextlib.suppress(Retry):
                await subscription.close()

    async def _read_state(self) -> tuple[object, PoolState]:
        """The state, with the revisions of what was read. `AsOf` is read first: the views hold at least up to there."""
        as_of = await self._read_as_of()
        pool, own = await asyncio.gather(
            self._value(streams.POOL_VIEW_KEY), self._value(streams.tenant_view_key(self._tenant))
        )
        if pool is None:
            raise NoViews(self._pool)
        sequence, tenant_part = as_of.sequence, TenantPart()
        try:
            pool_part = StoredView.decode(pool.data).part(PoolPart)
            if own is not None:
                view = StoredView.decode(own.data)
                tenant_part = view.part(TenantPart)
                is_large = len(view.body) > LARGE_BODY_BYTES
                sequence = view.sequence if is_large else max(view.sequence, sequence)
        except Undecodable as error:
            raise self._unreadable(error) from None
        self._num_left_out = tenant_part.num_left_out
        marks = pool.revision, own.revision if own is not None else 0
        return marks, seen_state(pool_part, tenant_part, sequence)

    async def _read_as_of(self) -> AsOf:
        value = await with_retry(self._value, streams.AS_OF_KEY)
        if value is None:
            raise NoViews(self._pool)
        try:
            self._as_of = decode_small(AsOf, value.data)
        except Undecodable as error:
            raise self._unreadable(error) from None
        return self._as_of

    async def _read_history(self, name: str) -> tuple[object, StoredHistory]:
        value = await self._value(streams.history_key(self._tenant, name))
        if value is None:
            return 0, StoredHistory()
        try:
            return value.revision, StoredHistory.decode(value.data)
        except Undecodable as error:
            raise self._unreadable(error) from None

    async def _value(self, key: str) -> Value | None:
        try:
            return await self._bus.get_value(self._bucket, key)
        except UnknownStream:
            raise NoViews(self._pool) from None
        except NotPermitted:
            raise KeysUnusable(
                "wrong_tenant",
                f"the key in EF_NATS_CREDS may not read the jobs of tenant {self._tenant!r} in pool {self._pool!r}: "
                "set EF_TENANT to the tenant of the key; a key that an older version made needs a new accounts.conf "
                "(`eflow keys`)",
            ) from None

    def _unreadable(self, error: Undecodable) -> LedgerUnusable:
        problem = f"the view of a tenant of pool {self._pool!r} cannot be read: {error}"
        return LedgerUnusable("view_unreadable", problem)
