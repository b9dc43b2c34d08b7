"""One result of a policy: on how many wishes at once, and what it comes to on the bus."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.runtime.service.command_queue import Pending
from elasticflow.shared.runtime.service.ledger_encoding import decision_id, fitted, split
from elasticflow.shared.state.policy import Policy, State

MAX_COMMANDS = 256  # wishes in one decision: they share the cost of one plan, and of one lost race


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideResult:
    """taken: the wishes that were judged; decision: None where nothing has to be decided."""

    taken: tuple[Pending, ...]
    decision: PlanDecided | None
    message_id: str  # of the decision
    facts: tuple[Event, ...]
    actions: tuple[Any, ...]


class Decider(Generic[State]):
    """Lets a policy decide on as many wishes at once as one message of the ledger can hold.

    One wish may move thousands of promised schedules. Where what follows is too much for a message, half as many
    wishes are judged; the number grows again while all goes well.
    """

    def __init__(
        self, policy: Policy[State], instance: str, waiting: Callable[[int], tuple[Pending, ...]]
    ) -> None:
        self._policy, self._instance, self._waiting = policy, instance, waiting
        self._max_commands = MAX_COMMANDS

    def judge(self, state: State, now_s: float) -> DecideResult:
        """Raises TooLarge where the oldest wish alone, or what follows without any, is too much for one message."""
        while True:
            taken = self._waiting(self._max_commands)
            try:
                result = self._judged(state, taken, now_s)
            except TooLarge:
                if len(taken) < 2:
                    raise
                self._max_commands = len(taken) // 2
            else:
                self._max_commands = min(MAX_COMMANDS, self._max_commands + self._max_commands // 4 + 1)
                return result

    def _judged(self, state: State, taken: tuple[Pending, ...], now_s: float) -> DecideResult:
        commands = tuple(pending.command for pending in taken)
        plan, facts, actions = split(self._policy.decide(state, commands, now_s))
        decision, message_id = None, ""
        if plan:
            decision = PlanDecided(
                service=self._policy.service,
                based_on=self._policy.pool(state).sequence,
                now_s=now_s,
                commands=commands,
                events=plan,
            )
            if len(taken) > 1:  # each wish that was taken has its answer in it, or fewer are taken
                message_id = decision_id(decision, self._instance)
            else:
                decision, message_id = fitted(decision, self._instance)
        return DecideResult(
            taken=taken, decision=decision, message_id=message_id, facts=facts, actions=actions
        )
