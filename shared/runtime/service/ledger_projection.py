"""The ledger of one pool, followed and folded: each message once, in order."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Generic

from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.bus.contract import DEFAULT_TIMEOUT_S, Bus
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.policy import Policy, State
from elasticflow.shared.state.pool import PoolState


class LedgerProjection(Generic[State]):
    """state: the policy's, up to the last folded message; the host replaces it when the policy observes."""

    def __init__(
        self,
        bus: Bus,
        pool: str,
        policy: Policy[State],
        log: Any,
        metrics: Metrics,
        on_news: Callable[[], None],
        on_message: Callable[[LedgerRecord], None],
        snapshot: PoolState | None = None,
    ) -> None:
        self._bus, self._pool, self._policy = bus, pool, policy
        self._log, self._metrics, self._on_news, self._on_message = log, metrics, on_news, on_message
        self.state: State = policy.start(snapshot or PoolState())
        self.last_decision_id = ""
        self._grown = asyncio.Condition()

    @property
    def folded(self) -> PoolState:
        return self._policy.pool(self.state)

    async def follow(self) -> None:
        """Fold all messages, until cancelled."""
        async for batch in self._bus.follow(self._pool, after_sequence=self.folded.sequence):
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
        except (TimeoutError, Retry) as error:
            self._log.warning("decision not read again", sequence=sequence, error=str(error))
            return None
        message = read_message(stored)
        return message if isinstance(message, PlanDecided) else None

    async def fold_own(self, decision: PlanDecided, message_id: str, sequence: int) -> None:
        """Fold the host's own decision before the next one; the follower then skips it."""
        if self.folded.sequence == sequence - 1:
            self.last_decision_id = message_id
            self.state = self._policy.evolve(self.state, decision, sequence)
        else:
            await self.up_to(sequence)

    def _fold(self, stored: LedgerRecord) -> None:
        sequence = self.folded.sequence
        if stored.sequence <= sequence:
            return
        assert stored.sequence == sequence + 1, f"ledger jumps from {sequence} to {stored.sequence}"
        message = read_message(stored)
        if isinstance(message, Unreadable):
            self._metrics.refused_total.inc()
            self._log.error("LedgerMessageSkipped", sequence=stored.sequence, problems=message.problems)
        if isinstance(message, PlanDecided):
            self.last_decision_id = stored.message_id
        self.state = self._policy.evolve(self.state, message, stored.sequence)
