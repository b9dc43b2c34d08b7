"""One result of a policy: on how many commands at once, and the decision, events and actions that follow."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.runtime.service.command_queue import Pending
from elasticflow.shared.runtime.service.ledger_encoding import fitted, split
from elasticflow.shared.state.policy import Policy, State

MAX_COMMANDS = 256  # in one decision: they share the cost of one plan, and of one lost race
PATIENT_LOSSES = 4  # in a row: the allocator and placement each answer a decision of admission with one of theirs
FEW_COMMANDS = 64  # fewer cost more each


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideResult:
    """taken: the commands that are decided on; decision: None if there is nothing to decide.

    too_large: the decision on the one command taken is larger than a message, and it has none.
    """

    taken: tuple[Pending, ...]
    decision: PlanDecided | None = None
    message_id: str = ""  # of the decision
    reported: tuple[Event, ...] = ()
    actions: tuple[Any, ...] = ()
    too_large: TooLarge | None = None


class Decider(Generic[State]):
    """Lets a policy decide on as many commands at once as one message of the ledger can hold.

    One command may change thousands of promised schedules. If one message cannot hold the decision, the policy decides
    on half as many commands; the number grows again with each decision that fits. If it cannot hold the decision on one
    command, however shortened, the policy first decides what is due without it. A decision holds the answers to all its
    commands.
    """

    def __init__(self, policy: Policy[State], instance: str, waiting: Callable[[int], tuple[Pending, ...]]) -> None:
        self._policy, self._instance, self._waiting = policy, instance, waiting
        self._max_commands = MAX_COMMANDS
        self._num_lost = 0  # decisions in a row

    def won(self) -> None:
        """The last decision is in the ledger."""
        self._num_lost = 0

    def lost(self) -> None:
        """The plan changed before the last decision was in it. Where it changes too often, decisions become shorter."""
        self._num_lost += 1
        if self._num_lost > PATIENT_LOSSES:
            self._max_commands = max(self._max_commands // 2, min(self._max_commands, FEW_COMMANDS))

    def decide(self, state: State, chain: str, now_s: float) -> Generator[None, None, DecideResult]:
        """Returns the result; pauses where the policy does. chain: of the ledger up to the state.

        Raises TooLarge if one message cannot hold what is due without a command, however much it is shortened.
        """
        while True:
            taken = self._waiting(self._max_commands)
            try:
                result = yield from self._decided(state, chain, taken, now_s)
            except TooLarge as error:
                if not taken:
                    raise
                if len(taken) == 1:
                    others = yield from self._decided(state, chain, (), now_s)
                    return others if others.decision is not None else DecideResult(taken=taken, too_large=error)
                self._max_commands = len(taken) // 2
            else:
                self._max_commands = min(MAX_COMMANDS, self._max_commands + self._max_commands // 4 + 1)
                return result

    def _decided(
        self, state: State, chain: str, taken: tuple[Pending, ...], now_s: float
    ) -> Generator[None, None, DecideResult]:
        commands = tuple(pending.command for pending in taken)
        if self._policy.decide_in_steps is None:
            outputs = self._policy.decide(state, commands, now_s)
        else:
            outputs = yield from self._policy.decide_in_steps(state, commands, now_s)
        plan, reported, actions = split(outputs)
        decision, message_id = None, ""
        if plan or taken:  # without an event too, the decision says that the commands are decided
            decision = PlanDecided(
                service=self._policy.service,
                based_on=self._policy.pool(state).sequence,
                now_s=now_s,
                commands=commands,
                queue_positions=tuple(pending.position for pending in taken),
                chain=chain,
                events=plan,
            )
            decision, message_id = fitted(decision, self._instance, self._policy)
        return DecideResult(taken=taken, decision=decision, message_id=message_id, reported=reported, actions=actions)
