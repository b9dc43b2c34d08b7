"""A pool's ledger: its messages, and the state that they fold to. No service takes part."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from elasticflow.client.retry import with_retry
from elasticflow.errors import NotEnded, UnknownJob
from elasticflow.sdk.times import Duration, seconds_of
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.nats.bus import NatsBus
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

LedgerEntry = tuple[LedgerRecord, Event | PlanDecided | None]  # None: an unreadable message


class LedgerView:
    """One pool's ledger, read over one connection."""

    def __init__(self, bus: NatsBus, pool: str) -> None:
        self._bus, self._pool = bus, pool

    async def entries(
        self, *, after_sequence: int = 0, up_to: int | None = None
    ) -> AsyncGenerator[LedgerEntry, None]:
        """The ledger, message by message, up to a sequence or without end."""
        batches = (
            self._bus.follow(self._pool, after_sequence=after_sequence)
            if up_to is None
            else self._bus.read(self._pool, after_sequence=after_sequence, up_to=up_to)
        )
        async with contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for stored in batch:
                    yield stored, readable(stored)

    async def last_sequence(self) -> int:
        return await with_retry(self._bus.last_sequence, self._pool)

    async def state(self) -> PoolState:
        """The pool now: the newest snapshot and the later messages."""
        state = await snapshot_store.load(self._bus, self._pool, get_log("client")) or PoolState()
        async for stored, message in self.entries(
            after_sequence=state.sequence, up_to=await self.last_sequence()
        ):
            state = ledger_fold.evolve(state, message, stored.sequence)
        return state

    async def states(self) -> AsyncGenerator[PoolState, None]:
        """The pool now and after every change, without end; a burst of changes counts as one."""
        state = await self.state()
        yield state
        batches = self._bus.follow(self._pool, after_sequence=state.sequence)
        async with contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for stored in batch:
                    state = ledger_fold.evolve(state, readable(stored), stored.sequence)
                yield state

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

    def _known(self, state: PoolState, job_id: str) -> Job:
        job = state.job(job_id)
        if job is None:
            raise UnknownJob(job_id, f"pool {self._pool}")
        return job


def readable(stored: LedgerRecord) -> Event | PlanDecided | None:
    """The message, None if it is unreadable."""
    try:
        return ledger_message(stored.subject, stored.data)
    except codec.Undecodable:
        return None
