"""The policies of one pool on virtual time: their folded states, when they decide, when the first one wakes."""

from collections.abc import Callable, Iterable
from typing import Any

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.policy import LedgerMessage, Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.virtual_time import Engine

NEVER_S = float("inf")

Evolve = Callable[[Any, LedgerMessage, int], Any]


class PolicyDriver:
    """settle: lets all policies decide; called once for all events of one instant, after them."""

    def __init__(self, engine: Engine, policies: Iterable[Policy[Any]], settle: Callable[[], None]) -> None:
        self._engine, self.policies, self._settle = engine, tuple(policies), settle
        # one state for each way to fold: a baseline may remember more than the pool
        self._folded: dict[Evolve, Any] = {ledger_fold.evolve: PoolState()}
        for policy in self.policies:
            self._folded.setdefault(policy.evolve, policy.start(PoolState()))
        self._is_due, self._wake_at_s = False, NEVER_S

    @property
    def state(self) -> PoolState:
        """The folded ledger."""
        return self._folded[ledger_fold.evolve]

    def fold(self, message: LedgerMessage) -> None:
        """The next message of the ledger."""
        sequence = self.state.sequence + 1
        for evolve, state in self._folded.items():
            self._folded[evolve] = evolve(state, message, sequence)

    def ask(self, policy: Policy[Any], commands: tuple[Command, ...]) -> PlanDecided | None:
        """What a policy decides now; not folded yet. None if nothing."""
        now_s = self._engine.now_s
        events = policy.decide(self._folded[policy.evolve], commands, now_s)
        if not events:
            return None
        return PlanDecided(
            service=policy.service,
            based_on=self.state.sequence,
            now_s=now_s,
            commands=commands,
            events=events,
        )

    def soon(self) -> None:
        """Let the policies decide at this instant."""
        if not self._is_due:
            self._is_due = True
            self._engine.after(0.0, self._decide)

    def _decide(self) -> None:
        self._is_due = False
        self._settle()
        self._sleep()

    def _sleep(self) -> None:
        """Decide again when the first policy wakes."""
        wakes_s = (policy.wake_at_s(self._folded[policy.evolve]) for policy in self.policies)
        wake_at_s = min((at_s for at_s in wakes_s if at_s is not None), default=NEVER_S)
        assert wake_at_s > self._engine.now_s, "a policy wakes now and decides nothing"
        if wake_at_s not in (self._wake_at_s, NEVER_S):
            self._engine.at(wake_at_s, lambda: self._wake(wake_at_s))
        self._wake_at_s = wake_at_s

    def _wake(self, at_s: float) -> None:
        if at_s == self._wake_at_s:
            self.soon()
