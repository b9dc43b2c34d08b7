"""One replica of a service on the virtual clock: the loop of `shared/runtime/host.py`, with its waits made visible.

Between a decision and its place in the ledger time passes, others write, and the replica may be killed.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic

from shared.errors import WrongExpectedSequence
from shared.messages import codec, subjects
from shared.messages.commands import Command
from shared.messages.events import Event, PlanDecided, PlanEvent
from shared.messages.policy import Policy, State
from shared.messages.pool_state import PoolState
from shared.runtime.outbox import decision_id, fact_id, split, subject_of
from simulator.engine import Engine
from simulator.faults import Link
from simulator.ledger import VirtualLedger

MAX_COMMANDS = 64


class Spinning(AssertionError):
    """A policy wants to wake now, and then has nothing to say: live, it would burn a core."""


class Replica(Generic[State]):
    """act(action): called for each output that is neither decision nor fact."""

    def __init__(
        self,
        engine: Engine,
        ledger: VirtualLedger,
        link: Link,
        pool: str,
        policy: Policy[State],
        instance: str,
        act: Callable[[Any], None] | None = None,
    ) -> None:
        self._engine, self._ledger, self._link, self._pool = engine, ledger, link, pool
        self.policy, self.instance, self._act = policy, instance, act
        self.num_conflicts = 0
        self._life = 0
        self._commands: deque[Command] = deque()
        self._begin()
        ledger.on_append.append(self._announced)

    @property
    def folded(self) -> PoolState:
        return self.policy.pool(self.state)

    def submit(self, command: Command) -> None:
        """A wish from the work queue; it stays there until a decision on it is stored."""
        self._commands.append(command)
        self._soon()

    def note(self, note: Any) -> None:
        """Something local happened."""
        self.state = self.policy.observe(self.state, note, self._engine.now_s)
        self._soon()

    def restart(self) -> None:
        """kill -9, and up again: what is left is the ledger, the work queue and what was sent already."""
        self._begin()

    def end(self) -> None:
        """kill -9, for good."""
        self._life += 1
        self._ledger.on_append.remove(self._announced)

    def catch_up(self) -> None:
        """Fold up to the ledger's end."""
        self._arrived(self._ledger.last_sequence)

    def _begin(self) -> None:
        self._life += 1
        self._busy = self._round_due = self._has_news = False
        self._wake_at_s: float | None = None
        self.state: State = self.policy.start(PoolState())
        self._fold(self._ledger.last_sequence)
        self._soon()

    def _in_this_life(self, happening: Callable[[], None]) -> Callable[[], None]:
        life = self._life
        return lambda: happening() if life == self._life else None

    # -- fold --------------------------------------------------------------------------------------------

    def _announced(self, sequence: int) -> None:
        """A message reaches each replica in its own time, and not before those that stand before it."""
        self._link.carry(self._in_this_life(lambda: self._arrived(sequence)))

    def _arrived(self, sequence: int) -> None:
        self._fold(sequence)
        self._soon()

    def _fold(self, up_to: int) -> None:
        for entry in self._ledger.entries[self.folded.sequence : up_to]:
            self.state = self.policy.evolve(self.state, entry.message, entry.sequence)

    # -- decide ------------------------------------------------------------------------------------------

    def _soon(self) -> None:
        """What comes at one instant is judged together, when all of it has come."""
        if not self._round_due:
            self._round_due = True
            self._engine.after(0.0, self._in_this_life(self._round))

    def _round(self, *, woken: bool = False) -> None:
        self._round_due = False
        if self._busy:
            self._has_news = True  # to be judged when what was judged before is told
            return
        now_s = self._engine.now_s
        commands = tuple(self._commands)[:MAX_COMMANDS]
        plan, facts, actions = split(self.policy.decide(self.state, commands, now_s))
        for action in actions:
            assert self._act is not None, f"{self.policy.service} has no hands for {action!r}"
            self._act(action)
            self.state = self.policy.observe(self.state, action, now_s)
        self._busy = True
        if woken and not (plan or facts or actions):
            self._assert_not_spinning()
        if plan:
            self._append(plan, commands, self._in_this_life(lambda: self._tell(facts, len(commands))))
        else:
            self._tell(facts, len(commands))

    def _append(
        self, plan: tuple[PlanEvent, ...], commands: tuple[Command, ...], stored: Callable[[], None]
    ) -> None:
        """Sent is sent: the decision reaches the ledger even if its replica is killed meanwhile."""
        folded, now_s = self.folded, self._engine.now_s
        decision = PlanDecided(
            service=self.policy.service,
            based_on=folded.sequence,
            now_s=now_s,
            commands=commands,
            events=plan,
        )
        message_id = decision_id(decision, self.instance)
        data = codec.encode(decision, id=message_id, recorded_at_s=now_s)
        decided_again = self._in_this_life(self._rival_was_first)

        def arrives() -> None:
            try:
                self._ledger.append(
                    subjects.plan(self._pool), data, message_id=message_id, expected=folded.plan_sequence
                )
            except WrongExpectedSequence:
                decided_again()
            else:
                stored()

        self._link.carry(arrives)

    def _rival_was_first(self) -> None:
        self.num_conflicts += 1
        self._caught_up()

    def _tell(self, facts: tuple[Event, ...], num_commands: int) -> None:
        """Facts go side by side; nothing else is judged before all are folded."""
        if not facts:
            self._settle(num_commands)
            return
        missing = {fact_id(fact) for fact in facts}

        def arrived(message_id: str) -> None:
            missing.discard(message_id)
            if not missing:
                self._settle(num_commands)

        for fact in facts:
            message_id = fact_id(fact)
            data = codec.encode(fact, id=message_id, recorded_at_s=self._engine.now_s)
            here = self._in_this_life(lambda message_id=message_id: arrived(message_id))

            def arrives(fact: Event = fact, data: bytes = data, here: Callable[[], None] = here) -> None:
                self._ledger.append(subject_of(self._pool, fact), data, message_id=fact_id(fact))
                here()

            self._link.carry_fact(arrives)

    def _settle(self, num_commands: int) -> None:
        for _ in range(num_commands):
            self._commands.popleft()
        self._caught_up()

    def _caught_up(self) -> None:
        """Know one's own words, and what made one lose, before anything else is judged."""
        self._busy = False
        if self.folded.sequence < self._ledger.last_sequence:
            self._fold(self._ledger.last_sequence)
            self._soon()
        elif self._commands or self._has_news:
            self._soon()
        self._has_news = False
        self._sleep()

    # -- sleep -------------------------------------------------------------------------------------------

    def _sleep(self) -> None:
        wake_at_s = self.policy.wake_at_s(self.state)
        if wake_at_s is not None and wake_at_s != self._wake_at_s:
            self._wake_at_s = wake_at_s
            self._engine.at(wake_at_s, self._in_this_life(lambda: self._wake(wake_at_s)))

    def _wake(self, wake_at_s: float) -> None:
        if wake_at_s == self._wake_at_s:
            self._wake_at_s = None
            self._round(woken=True)

    def _assert_not_spinning(self) -> None:
        wake_at_s = self.policy.wake_at_s(self.state)
        if wake_at_s is not None and wake_at_s <= self._engine.now_s:
            raise Spinning(f"{self.policy.service} woke at {wake_at_s} and said nothing")
