"""One result of a policy: on how many commands at once, and the decision, events and actions that follow."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.clock_check import ClockCheck
from elasticflow.shared.runtime.service.command_queue import Pending
from elasticflow.shared.runtime.service.decision_problems import (
    chain_problem,
    clock_problem,
    plan_problem,
    version_problem,
)
from elasticflow.shared.runtime.service.ledger_encoding import fitted, split
from elasticflow.shared.state.ledger_chain import LedgerChain
from elasticflow.shared.state.policy import Policy, State
from elasticflow.shared.state.pool import PoolState

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


# --- decision guard ------------------------------------------------------------------------------------
# What keeps a planner from deciding: a plan that it cannot read, a changed ledger, a wrong clock, a decision that no
# message can hold.
#
# The planner goes on folding, and decides again by itself once the cause is gone. Meanwhile it says why: in its log,
# on its health page (`unwell`) and as a metric.

FIRST_WAIT_S = 1.0  # between two attempts of a planner that must not decide
LONGEST_WAIT_S = 8.0

READER_VERSION_REASON, PLAN_REASON, CHAIN_REASON = "reader_version", "unreadable_plan", "changed_ledger"
CLOCK_REASON, SIZE_REASON = "clock", "decision_size"


class DecisionGuard:
    """The reasons for which one planner takes no decisions."""

    def __init__(self, clock_check: ClockCheck, log: Any, metrics: Metrics) -> None:
        self._clock_check = clock_check
        self._log, self._metrics = log, metrics
        self._problems: dict[str, str] = {}
        self._wait_s = FIRST_WAIT_S

    @property
    def problem(self) -> str | None:
        """Why the planner takes no decisions, in a sentence; None if it may."""
        return "takes no decisions: " + "; ".join(self._problems.values()) if self._problems else None

    @property
    def is_fit(self) -> bool:
        """Whether this replica may decide. A decision that is too large is so for every replica."""
        return not self._problems.keys() - {SIZE_REASON}

    def next_wait_s(self) -> float:
        """The wait until the next attempt; each is longer than the one before, up to LONGEST_WAIT_S."""
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        return wait_s

    async def may_decide(self, folded: Callable[[], PoolState], chain: LedgerChain) -> bool:
        """Whether this planner knows the time, and reads all of the plan that is folded by then, unchanged.

        Raises Retry.
        """
        await self._check_clock(folded().config.deadline_slack_s)
        self._check_plan(folded(), chain)  # without another wait before the decision: the state changes meanwhile
        return self.is_fit  # only an attempt shows whether a decision has become smaller

    async def _check_clock(self, slack_s: float) -> None:
        await self._clock_check.refresh(slack_s)
        self._metrics.clock_offset.set(self._clock_check.offset_s)
        self._note(CLOCK_REASON, clock_problem(self._clock_check, slack_s))

    def _check_plan(self, pool: PoolState, chain: LedgerChain) -> None:
        self._note(READER_VERSION_REASON, version_problem(pool))
        self._note(PLAN_REASON, plan_problem(pool))
        self._note(CHAIN_REASON, chain_problem(chain, pool))

    def too_large(self, error: TooLarge) -> None:
        """The decision was not stored."""
        advice = "check max_payload of NATS, or reduce the jobs of the pool"
        self._note(SIZE_REASON, f"its decision is too large: {error}; {advice}")

    def fits(self) -> None:
        """The decision is stored, or there was none."""
        self._note(SIZE_REASON, None)

    def _note(self, reason: str, problem: str | None) -> None:
        known = self._problems.get(reason)
        if problem is None:
            self._problems.pop(reason, None)
        else:
            self._problems[reason] = problem
        if (problem is None) != (known is None):
            self._metrics.blocked.set(reason, problem is not None)
            if problem is None:
                self._log.info("decides again", reason=reason)
            else:
                self._log.error("takes no decisions", reason=reason, problem=problem)
        if not self._problems:
            self._wait_s = FIRST_WAIT_S
