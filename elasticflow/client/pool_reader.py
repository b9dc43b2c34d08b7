"""What a client reads of its pool: from the ledger, or with the key of a tenant from that tenant's view."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from elasticflow.client.ledger import ARCHIVES, LedgerEntry, LedgerView
from elasticflow.client.replies import CausedEvent
from elasticflow.client.tenant_view import TenantView
from elasticflow.errors import ArchivesNeeded, NotEnded, OperatorsOnly, UnknownJob
from elasticflow.history.job_history import HistoryEntry, job_history
from elasticflow.sdk.times import Duration, seconds_of
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.events import ArtifactsStored, Event, PlanDecided
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


class PoolReader:
    """view: None reads the ledger."""

    def __init__(self, bus: NatsBus, pool: str, view: TenantView | None = None) -> None:
        self._bus, self._pool, self.view = bus, pool, view
        self._ledger = LedgerView(bus, pool)

    @property
    def is_connected(self) -> bool:
        """False while the connection to NATS is being made again."""
        return self._bus.is_connected

    @property
    def ledger(self) -> LedgerView:
        """All that happened in the pool. Raises OperatorsOnly."""
        self.require_operator()
        return self._ledger

    def require_operator(self) -> None:
        """Raises OperatorsOnly with the key of a tenant."""
        if self.view is not None:
            raise OperatorsOnly(self._pool)

    def entries(self, *, after_sequence: int = 0, up_to: int | None = None) -> AsyncGenerator[LedgerEntry, None]:
        """The ledger, message by message, up to a sequence or without end. Raises OperatorsOnly."""
        return self.ledger.entries(after_sequence=after_sequence, up_to=up_to)

    async def last_sequence(self) -> int:
        """Of the ledger. Raises OperatorsOnly."""
        return await self.ledger.last_sequence()

    async def state(self) -> PoolState:
        """The pool now; for a tenant, without what others do."""
        return await (self._ledger if self.view is None else self.view).state()

    def states(self) -> AsyncGenerator[PoolState, None]:
        """The pool now and after every change, without end; a burst of changes counts as one."""
        return (self._ledger if self.view is None else self.view).states()

    async def history(self, name: str) -> tuple[HistoryEntry, ...]:
        """What happened to a job or padding load; () of an unknown one.

        Without archives it begins with the present epoch. Raises ArchivesNeeded where nothing is in that one.
        """
        if self.view is not None:
            return await self.view.history(name)
        last, state = await self._ledger.last_sequence(), await self._ledger.beginning()
        async with contextlib.aclosing(self._ledger.entries(after_sequence=state.sequence, up_to=last)) as entries:
            read = [(stored.sequence, stored.stored_at_s, message) async for stored, message in entries]
        history = job_history(read, name, state)
        if not history and (state.job(name) is not None or name in state.loads):
            raise ArchivesNeeded(self._pool, state.sequence, ARCHIVES)
        return history

    async def known_history(self, name: str) -> tuple[HistoryEntry, ...]:
        """As `history`. Raises UnknownJob, with close names."""
        if not (history := await self.history(name)):
            raise UnknownJob(name, f"pool {self._pool}", (await self.state()).names)
        return history

    async def job(self, job_id: str) -> Job:
        """Raises UnknownJob."""
        return self._known(await self.state(), job_id)

    async def wait(self, job_id: str, *, timeout: Duration | None = None) -> Job:
        """The job, once it has ended. Raises UnknownJob, NotEnded."""
        timeout_s = None if timeout is None else seconds_of(timeout)
        try:
            async with asyncio.timeout(timeout_s), contextlib.aclosing(self.states()) as states:
                async for state in states:
                    job = self._known(state, job_id)
                    if not job.live:
                        return job
        except TimeoutError:
            raise NotEnded(job_id, timeout_s or 0.0) from None
        raise AssertionError("states() never ends")

    async def _new_events(self, name: str) -> AsyncGenerator[CausedEvent, None]:
        """The events about a job or load from now on, without end."""
        if self.view is not None:
            return await self.view.new_events(name)
        return self._events_after(name, await self._ledger.last_sequence())

    async def _events_after(self, name: str, sequence: int) -> AsyncGenerator[CausedEvent, None]:
        async with contextlib.aclosing(self._ledger.entries(after_sequence=sequence)) as entries:
            async for _, message in entries:
                is_decision = isinstance(message, PlanDecided)
                for event in message.events if is_decision else (message,):
                    if isinstance(event, Event) and id_of(event) == name:
                        yield CausedEvent(event, message.queue_sequences().get(name, 0) if is_decision else 0)

    async def _stored_files(self, job: Job) -> ArtifactsStored | None:
        """The newest event that names the stored files of a job; None if it cannot be found."""
        if self.view is not None:
            events = [kept.event for kept in await self.view.events(job.job_id)]
            return next((event for event in reversed(events) if isinstance(event, ArtifactsStored)), None)
        after = job.artifacts.sequence - 1
        async with contextlib.aclosing(self._ledger.entries(after_sequence=after, up_to=after + 1)) as entries:
            return await anext((message async for _, message in entries if isinstance(message, ArtifactsStored)), None)

    def _known(self, state: PoolState, job_id: str) -> Job:
        job = state.job(job_id)
        if job is None:
            raise UnknownJob(job_id, f"pool {self._pool}", state.names)
        return job
