"""Stores what each tenant sees of the pool: its jobs and loads, and their histories (docs/adr/0071).

Only the leading monitor does. A change is stored at once, then at most one each second for each tenant. A value is
replaced by compare-and-set, so a monitor that paused replaces no newer view. All values can be deleted: the next
monitor makes them again.
"""

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from elasticflow.history.job_history import EventsInWords, HistoryEntry
from elasticflow.history.stored_history import StoredHistory, is_kept, kept_bytes
from elasticflow.services.monitor.model import MonitorState
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.events import Event, LoadEvent, PlanDecided
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.logs import BackoffLogger
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.tenant_view import (
    LARGE_BODY_BYTES,
    AsOf,
    PoolPart,
    StoredView,
    TenantBodies,
    TenantPart,
    WriterPosition,
    body_of_pool,
    decode_small,
    encode_small,
    pool_part,
    tenant_parts,
    without_other_jobs,
)

# --- new histories -------------------------------------------------------------------------------------
# What the ledger adds to the histories of jobs and padding loads, and is not stored for their tenants so far. Pure.

REPORTS_WAIT_S = 15.0  # reports of progress are stored so much later, unless another entry follows


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHistory:
    """first_sequence: of the oldest message in it; since_s: its time in the ledger. is_report: nothing but reports."""

    first_sequence: int
    since_s: float
    is_report: bool
    added: StoredHistory


class NewHistories:
    """Folds the ledger. state: where to start; histories_to: what is stored up to this sequence is no news."""

    def __init__(self, state: PoolState, histories_to: int) -> None:
        self._words = EventsInWords(for_tenants=True, state=state)
        self._histories_to = histories_to
        self._new: dict[str, dict[str, NewHistory]] = {}  # by tenant, and by name of the job or load

    @property
    def state(self) -> PoolState:
        return self._words.state

    @property
    def stored_to(self) -> int:
        """The sequence up to which all histories are stored."""
        firsts = (new.first_sequence for jobs in self._new.values() for new in jobs.values())
        oldest = min(firsts, default=self.state.sequence + 1) - 1
        return max(oldest, self._histories_to)

    def fold(self, sequence: int, at_s: float, message: LedgerMessage) -> None:
        said = self._words.fold(sequence, at_s, message)
        if sequence <= self._histories_to or isinstance(message, Unreadable):
            return
        for name, entry, tenant in said:
            if tenant:
                self._add(tenant, name, sequence, at_s, entry=entry)
        is_decision = isinstance(message, PlanDecided)
        queue_sequences = message.queue_sequences() if is_decision else {}
        for event in message.events if is_decision else (message,):
            if (kept := self._reply(event, queue_sequences.get(id_of(event), 0))) is not None:
                self._add(*kept[:2], sequence, at_s, kept=kept[2])

    def due(self, tenant: str, now_s: float) -> list[tuple[str, NewHistory]]:
        """The jobs and loads of a tenant whose histories must be stored now, the one with the newest message first."""
        found = [
            (name, new)
            for name, new in self._new.get(tenant, {}).items()
            if not new.is_report or now_s - new.since_s >= REPORTS_WAIT_S
        ]
        return sorted(found, key=lambda each: (-each[1].added.sequence, each[0]))

    def tenants(self) -> frozenset[str]:
        """The tenants with anything that is not stored."""
        return frozenset(self._new)

    def stored(self, tenant: str, name: str) -> None:
        """What was due of it is stored now. The caller has folded nothing meanwhile."""
        del self._new[tenant][name]
        if not self._new[tenant]:
            del self._new[tenant]

    def _add(
        self,
        tenant: str,
        name: str,
        sequence: int,
        at_s: float,
        *,
        entry: HistoryEntry | None = None,
        kept: bytes = b"",
    ) -> None:
        of_tenant = self._new.setdefault(tenant, {})
        new = of_tenant.get(name)
        if new is None:
            new = NewHistory(first_sequence=sequence, since_s=at_s, is_report=True, added=StoredHistory())
        added = replace(new.added, sequence=sequence - 1)  # several entries may come of one message
        added = added.extended(sequence, () if entry is None else (entry,), ((sequence, kept),) if kept else ())
        is_report = new.is_report and not kept and entry is not None and entry.is_report
        of_tenant[name] = replace(new, added=added, is_report=is_report)

    def _reply(self, event: Event, queue_sequence: int) -> tuple[str, str, bytes] | None:
        """The tenant, the job or load and the event as this tenant may see it; None if no client waits for such."""
        name = id_of(event)
        if not name or not is_kept(event):
            return None
        of = self.state.loads.get(name) if isinstance(event, LoadEvent) else self.state.job(name)
        tenant = cast(str, getattr(event, "tenant", "")) or (of.tenant if of is not None else "")
        if not tenant:
            return None
        return tenant, name, kept_bytes(without_other_jobs(self.state, tenant, event), queue_sequence)


# --- tenant views --------------------------------------------------------------------------------------

RETRY_S = 1.0
ROUND_S = 0.05  # between two rounds: a burst of messages is one change
TENANT_EVERY_S = 1.0  # a view
BYTES_PER_S = 256 * 1024  # of one tenant's views: large ones are stored less often
HISTORIES_AT_ONCE = 20  # of one tenant, with its view
AS_OF_EVERY_S = 5.0  # at least, so that readers know that the monitor lives
WRITER_EVERY_S = 5.0
HISTORY_KEPT_S = 90 * 86_400  # since its last entry
_NOTHING_READ = -1


class _Stored(NamedTuple):
    """What a key holds. sequence: of the ledger, up to which it holds."""

    revision: int
    sequence: int
    body: bytes


class TenantViews:
    """Runs beside the host, with a fold of its own: the host's may begin after what the histories need."""

    def __init__(self, process: Process, host: Host[MonitorState]) -> None:
        self._bus, self._pool, self._clock = process.bus, process.settings.pool, process.clock
        self._log, self._host = process.log, host

    async def run(self) -> None:
        """Store the views while this monitor leads, until cancelled."""
        await self._host.ready.wait()
        backoff = BackoffLogger(self._log, "views of tenants wait")
        while True:
            if self._host.leads:
                try:
                    await self._store_while_leading()
                    backoff.is_over()
                except ElasticFlowError as error:
                    backoff.goes_on(error)
            await asyncio.sleep(RETRY_S)

    async def _store_while_leading(self) -> None:
        """Raises ElasticFlowError, for example WrongExpectedSequence if another monitor leads."""
        histories, known = await self._start()
        writer = ViewWriter(self._bus, self._pool, self._clock, histories, known)
        behind_until, due_at_s, not_before_s = self._host.folded.sequence, 0.0, 0.0
        batches = self._bus.follow(self._pool, after_sequence=histories.state.sequence)
        async with contextlib.aclosing(batches):
            batch = asyncio.ensure_future(anext(batches))
            try:
                while self._host.leads:
                    is_behind = histories.state.sequence < behind_until
                    await asyncio.wait({batch}, timeout=None if is_behind else max(due_at_s - self._clock.now_s(), 0.0))
                    if batch.done():
                        for stored in batch.result():
                            histories.fold(stored.sequence, stored.stored_at_s, read_message(stored))
                        batch = asyncio.ensure_future(anext(batches))
                        due_at_s = min(due_at_s, not_before_s)
                        await asyncio.sleep(0)  # during a long fold, heartbeats go on
                    if histories.state.sequence >= behind_until and self._clock.now_s() >= due_at_s:
                        due_at_s = await writer.round()
                        not_before_s = self._clock.now_s() + ROUND_S
            finally:
                batch.cancel()
                await asyncio.gather(batch, return_exceptions=True)

    async def _start(self) -> tuple[NewHistories, tuple[str, ...]]:
        """The histories from where the last monitor stopped, and the tenants with views.

        The fold must begin at or before what is stored. Without a stored position or a snapshot there, it begins with
        the first message that the ledger keeps.
        """
        position = WriterPosition(histories_to=0)
        value = await self._bus.get_value(streams.view_bucket(self._pool), streams.WRITER_KEY)
        with contextlib.suppress(Undecodable):  # of another version: then all is made again
            position = position if value is None else decode_small(WriterPosition, value.data)
        snapshot = await snapshot_store.load(self._bus, self._pool, self._log)
        is_early = snapshot is not None and snapshot.state.sequence <= position.histories_to
        state = snapshot.state if snapshot is not None and is_early else None
        state = state or await snapshot_store.beginning(self._bus, self._pool)
        return NewHistories(state, position.histories_to), position.tenants


class ViewWriter:
    """Stores what has changed, round by round."""

    def __init__(self, bus: Bus, pool: str, clock: Clock, histories: NewHistories, tenants: tuple[str, ...]) -> None:
        self._bus, self._bucket, self._clock = bus, streams.view_bucket(pool), clock
        self._histories = histories
        self._parts: dict[str, TenantPart] = dict.fromkeys(tenants, TenantPart())
        self._pool_part: PoolPart | None = None
        self._bodies = TenantBodies()
        self._stored: dict[str, _Stored] = {}
        self._shown: dict[str, TenantPart] = {}  # by tenant, what is stored
        self._next_at_s: dict[str, float] = {}
        self._waiting: dict[str, int] = {}  # tenants with changes that wait: up to where the stored view holds
        self._last_as_of = AsOf(sequence=0, at_s=0.0)
        self._position_at_s = 0.0
        self._position: WriterPosition | None = None

    async def round(self) -> float:
        """Store what is due now; returns when the next round is due, if no message comes before. Raises what the bus
        raises."""
        now_s, state = self._clock.now_s(), self._histories.state
        has_stored = await self._store_pool(state)
        self._parts = {**dict.fromkeys(self._parts, TenantPart()), **tenant_parts(state)}
        self._bodies.forget_others(self._parts)
        for tenant in sorted({*self._parts, *self._histories.tenants()}):
            has_stored |= await self._store_tenant(tenant, state.sequence, now_s)
        await self._store_as_of(state.sequence, now_s, has_stored=has_stored)
        await self._store_position(now_s)
        waiting_s = (self._next_at_s[tenant] for tenant in self._waiting)
        return max(min((now_s + TENANT_EVERY_S, *waiting_s)), now_s + ROUND_S)

    async def _store_pool(self, state: PoolState) -> bool:
        part = pool_part(state)
        if part == self._pool_part:
            return False
        has_stored = await self._store_view(streams.POOL_VIEW_KEY, state.sequence, body_of_pool(part))
        self._pool_part = part
        return has_stored

    async def _store_tenant(self, tenant: str, sequence: int, now_s: float) -> bool:
        """The view first: a reader who sees the reply to a command in a history sees the job's state too."""
        key, part = streams.tenant_view_key(tenant), self._parts.get(tenant, TenantPart())
        due, is_shown = self._histories.due(tenant, now_s), self._shown.get(tenant) == part
        if is_shown and not due:
            self._waiting.pop(tenant, None)
            return False
        if now_s < self._next_at_s.get(tenant, 0.0):
            self._waiting.setdefault(tenant, sequence if is_shown else self._last_as_of.sequence)
            return False
        if not is_shown:
            await self._store_view(key, sequence, self._bodies.body(part))
            self._shown[tenant] = part
        for name, new in due[:HISTORIES_AT_ONCE]:
            await self._store_history(tenant, name, new.added)
        num_bytes = len(self._stored[key].body) if key in self._stored else 0
        self._next_at_s[tenant] = now_s + max(TENANT_EVERY_S, num_bytes / BYTES_PER_S)
        self._waiting.pop(tenant, None)
        return True

    async def _store_view(self, key: str, sequence: int, body: bytes) -> bool:
        """Unless it is stored already, or a newer one is."""
        stored = self._stored.get(key) or await self._read_view(key)
        if stored.sequence > sequence or stored.body == body:
            self._stored[key] = stored
            return False
        data = StoredView(sequence=sequence, body=body).encode()
        revision = await self._bus.put_value(self._bucket, key, data, expected_revision=stored.revision)
        self._stored[key] = _Stored(revision, sequence, body)
        return True

    async def _read_view(self, key: str) -> _Stored:
        value = await self._bus.get_value(self._bucket, key)
        if value is None:
            return _Stored(0, _NOTHING_READ, b"")
        with contextlib.suppress(Undecodable):  # of another version: it is replaced
            view = StoredView.decode(value.data)
            return _Stored(value.revision, view.sequence, view.body)
        return _Stored(value.revision, _NOTHING_READ, b"")

    async def _store_history(self, tenant: str, name: str, added: StoredHistory) -> None:
        key = streams.history_key(tenant, name)
        value = await self._bus.get_value(self._bucket, key)
        old = StoredHistory()
        with contextlib.suppress(Undecodable):  # of another version: it begins anew
            old = old if value is None else StoredHistory.decode(value.data)
        revision = 0 if value is None else value.revision
        data = old.followed_by(added).encode()
        await self._bus.put_value(self._bucket, key, data, expected_revision=revision, ttl_s=HISTORY_KEPT_S)
        self._histories.stored(tenant, name)

    async def _store_as_of(self, sequence: int, now_s: float, *, has_stored: bool) -> None:
        """Store, after the views, up to where they hold: what it says of them is true, except of large ones."""
        holds_to = min((sequence, *(at for tenant, at in self._waiting.items() if not self._is_large(tenant))))
        is_newer, age_s = holds_to > self._last_as_of.sequence, now_s - self._last_as_of.at_s
        if (is_newer and (has_stored or age_s >= TENANT_EVERY_S)) or age_s >= AS_OF_EVERY_S:
            as_of = AsOf(sequence=holds_to, at_s=now_s)
            await self._bus.put_value(self._bucket, streams.AS_OF_KEY, encode_small(as_of))
            self._last_as_of = as_of

    def _is_large(self, tenant: str) -> bool:
        """Its view waits longer than those of others, and says itself up to where it holds."""
        stored = self._stored.get(streams.tenant_view_key(tenant))
        return stored is not None and len(stored.body) > LARGE_BODY_BYTES

    async def _store_position(self, now_s: float) -> None:
        position = WriterPosition(histories_to=self._histories.stored_to, tenants=tuple(sorted(self._shown)))
        if position != self._position and now_s - self._position_at_s >= WRITER_EVERY_S:
            await self._bus.put_value(self._bucket, streams.WRITER_KEY, encode_small(position))
            self._position, self._position_at_s = position, now_s
