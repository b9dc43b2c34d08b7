"""The ledger of one pool, followed and folded: each message once, in order."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic

from elasticflow.shared.errors import LedgerBroken, Retry
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import DEFAULT_TIMEOUT_S
from elasticflow.shared.runtime.process.logs import RefusalLog
from elasticflow.shared.runtime.service.decision_problems import chain_problem
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.runtime.service.snapshot_store import Snapshot
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage, Unreadable
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.policy import Policy, State
from elasticflow.shared.state.pool import PoolState


class LedgerProjection(Generic[State]):
    """state: the policy's, up to the last folded message; the host replaces it when the policy observes."""

    def __init__(
        self,
        context: ServiceContext,
        policy: Policy[State],
        on_news: Callable[[], None],
        on_message: Callable[[LedgerRecord], None],
        snapshot: Snapshot | None = None,
    ) -> None:
        self._bus, self._pool, self._policy, self._read = context.bus, context.pool, policy, context.read
        self._log, self._metrics, self._on_news, self._on_message = context.log, context.metrics, on_news, on_message
        self.state: State = policy.start(PoolState() if snapshot is None else snapshot.state)
        self.chain = LedgerChain() if snapshot is None else snapshot.ledger_chain()
        self.last_decision_id = ""
        self.newest: LedgerRecord | None = None  # the last folded message, unless a snapshot holds it
        self._grown = asyncio.Condition()
        self._clock, self._faults = context.clock, RefusalLog(context.log.error)

    @property
    def folded(self) -> PoolState:
        return self._policy.pool(self.state)

    def snapshot(self) -> Snapshot | None:
        """The state, for other readers to start from; None if the ledger was changed."""
        if chain_problem(self.chain, self.folded) is not None:
            return None
        return Snapshot(state=self.folded, chain=self.chain.digest)

    async def follow(self) -> None:
        """Fold all messages, until cancelled."""
        try:
            async for batch in self._bus.follow(self._pool, after_sequence=self.folded.sequence):
                await self._fold_all(batch)
        finally:
            self._faults.close()

    async def _fold_all(self, batch: tuple[LedgerRecord, ...]) -> None:
        self._faults.write_counts(self._clock.now_s())
        for stored in batch:
            self._on_message(stored)
            self._fold(stored)
        self._metrics.ledger_sequence.set(self.folded.sequence)
        async with self._grown:
            self._grown.notify_all()
        self._on_news()
        await asyncio.sleep(0)  # during a long replay, heartbeats go on

    async def up_to(self, sequence: int) -> None:
        """Return when this message is folded."""
        async with self._grown:
            await self._grown.wait_for(lambda: self.folded.sequence >= sequence)

    async def decision_at(self, sequence: int) -> PlanDecided | None:
        """A decision of the ledger; None if it cannot be read now."""
        batches = self._bus.read(self._pool, after_sequence=sequence - 1, up_to=sequence)
        try:
            async with asyncio.timeout(DEFAULT_TIMEOUT_S), contextlib.aclosing(batches):  # pyright: ignore[reportArgumentType]
                (stored,) = await anext(batches)
        except (TimeoutError, Retry, LedgerBroken) as error:  # the latter if it is archived
            self._log.warning("decision not read again", sequence=sequence, error=str(error))
            return None
        message = self._read(stored)
        return message if isinstance(message, PlanDecided) else None

    async def fold_own(self, decision: PlanDecided, own: LedgerRecord) -> None:
        """Fold the host's own decision before the next one; the follower then skips it."""
        if self.folded.sequence == own.sequence - 1:
            self._evolve(own, decision)
        else:
            await self.up_to(own.sequence)

    def _fold(self, stored: LedgerRecord) -> None:
        sequence = self.folded.sequence
        if stored.sequence <= sequence:
            return
        assert stored.sequence == sequence + 1, f"ledger jumps from {sequence} to {stored.sequence}"
        message = self._read(stored)
        if isinstance(message, Unreadable):
            self._metrics.refused_total.inc()
            self._note_fault("LedgerMessageSkipped", sequence=stored.sequence, problems=message.problems)
        self._evolve(stored, message)

    def _note_fault(self, kind: str, **keys: Any) -> None:
        """Whoever may write the ledger decides how many there are."""
        self._faults.write(kind, "", self._clock.now_s(), **keys)

    def _evolve(self, stored: LedgerRecord, message: LedgerMessage) -> None:
        if (found := self.chain.add(stored, message)) is not None:
            self._note_fault("LedgerChanged", problem=found.in_words())
        self.newest = stored
        if isinstance(message, PlanDecided):
            self.last_decision_id = stored.message_id
        self.state = self._policy.evolve(self.state, message, stored.sequence)
