"""What the ledger of a pool says: its messages, and the state that they fold to. Nothing is asked of a service."""

import contextlib
from collections.abc import AsyncGenerator

from elasticflow.errors import UnknownJob
from elasticflow.patience import patiently
from shared.messages import codec, lifecycle
from shared.messages.events import Event, PlanDecided
from shared.messages.job_state import Job
from shared.messages.pool_state import PoolState
from shared.runtime import snapshots
from shared.runtime.bus import Stored
from shared.runtime.logs import get_log
from shared.runtime.nats_bus import NatsBus
from shared.runtime.outbox import ledger_message

LedgerEntry = tuple[Stored, Event | PlanDecided | None]  # None: a message that nobody can read


class LedgerView:
    """One pool's ledger, read over one connection."""

    def __init__(self, bus: NatsBus, pool: str) -> None:
        self._bus, self._pool = bus, pool

    async def entries(
        self, *, after_sequence: int = 0, up_to: int | None = None
    ) -> AsyncGenerator[LedgerEntry, None]:
        """The ledger, message by message, up to a sequence or for ever."""
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
        return await patiently(self._bus.last_sequence, self._pool)

    async def state(self) -> PoolState:
        """The pool now: the newest snapshot, and what the ledger has added since."""
        state = await snapshots.load(self._bus, self._pool, get_log("client")) or PoolState()
        async for stored, message in self.entries(
            after_sequence=state.sequence, up_to=await self.last_sequence()
        ):
            state = lifecycle.evolve(state, message, stored.sequence)
        return state

    async def states(self) -> AsyncGenerator[PoolState, None]:
        """The pool now, and again after every change, for ever; a burst of changes counts as one."""
        state = await self.state()
        yield state
        batches = self._bus.follow(self._pool, after_sequence=state.sequence)
        async with contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
            async for batch in batches:
                for stored in batch:
                    state = lifecycle.evolve(state, readable(stored), stored.sequence)
                yield state

    async def job(self, job_id: str) -> Job:
        """Raises UnknownJob."""
        return self._known(await self.state(), job_id)

    async def wait(self, job_id: str) -> Job:
        """The job, once it has ended. Raises UnknownJob."""
        async with contextlib.aclosing(self.states()) as states:
            async for state in states:
                job = self._known(state, job_id)
                if not job.live:
                    return job
        raise AssertionError("the ledger is followed for ever")

    def _known(self, state: PoolState, job_id: str) -> Job:
        job = state.job(job_id)
        if job is None:
            raise UnknownJob(job_id, f"pool {self._pool}")
        return job


def readable(stored: Stored) -> Event | PlanDecided | None:
    """The message in it, None if nobody can read it."""
    try:
        return ledger_message(stored.subject, stored.data)
    except codec.Undecodable:
        return None
