"""The interface of a service's decisions, which the service host and the simulator call.

    history --evolve--> state --decide--> what follows

Pure functions of frozen values: no clock, no bus, no logger, no randomness.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import AdmissionEvent, Event, JobFailed, PlanEvent
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.ledger_fold import LedgerMessage
from elasticflow.shared.state.pool import PoolState

State = TypeVar("State")
Result = TypeVar("Result")

Steps = Callable[[State, tuple[Command, ...], float], Generator[None, None, tuple[Any, ...]]]
Shorten = Callable[[tuple[PlanEvent, ...]], tuple[PlanEvent, ...] | None]
Reply = AdmissionEvent | JobFailed
Replies = Callable[[PoolState, tuple[Command, ...], tuple[Event, ...]], tuple[Reply, ...]]
IsAnswer = Callable[[PlanEvent, Command], bool]
RepliesAgain = Callable[[PoolState, Command, tuple[PlanEvent, ...]], tuple[Reply, ...]]


def _all_or_nothing(events: tuple[PlanEvent, ...]) -> None:
    """No part of a decision is a decision."""


def _may_be_answer(event: PlanEvent, command: Command) -> bool:
    """Any event, as far as is known."""
    return True


def _no_replies(state: PoolState, command: Command, events: tuple[PlanEvent, ...]) -> tuple[Reply, ...]:
    """A service that takes no commands sends no replies."""
    return ()


def job_failures(state: PoolState, commands: tuple[Command, ...], events: tuple[Event, ...]) -> tuple[Reply, ...]:
    """The user of a job that fails in its profiling run still waits for a decision."""
    return tuple(event for event in events if isinstance(event, JobFailed))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserReplies:
    """What users who wait for the answer to a command receive.

    is_answer(event, command) -> whether the user of a command may wait for this event.
    replies(pool, commands, events) -> what users receive once these events are in the ledger. commands: those that the
        events decide on.
    replies_again(pool, command, events) -> what the user of a command receives when it is delivered after its
        decision. events: of that decision.
    """

    is_answer: IsAnswer = _may_be_answer
    replies: Replies = job_failures
    replies_again: RepliesAgain = _no_replies


ONLY_FAILURES = UserReplies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Generic[State]):
    """The functions that define a service's decisions.

    start(pool) -> the initial state; pool(state) -> the folded ledger in it.
    evolve(state, message, sequence) -> the state after one message of the ledger.
    observe(state, local_event, now_s) -> the state after a local event: a heartbeat, a worker's message, an action.
    decide(state, commands, now_s) -> what follows, in order: decisions (appended as one `PlanDecided` by
        compare-and-set), events (appended to their own subjects), or actions for the service's action handler.
    decide_in_steps(state, commands, now_s) -> a generator that returns the same, and pauses on its way: a host gives up
        a decision whose plan has changed meanwhile. None: the decision is short.
    wake_at_s(state) -> when to decide again without a new message; None: never.
    shorten(events) -> fewer or shorter events that are a decision too, for events that one message cannot hold;
        None: there are none. No answer to a command may be among the events that are left out.
    plans: it decides by compare-and-set on the plan.
    """

    service: str
    start: Callable[[PoolState], State]
    pool: Callable[[State], PoolState]
    evolve: Callable[[State, LedgerMessage, int], State]
    decide: Callable[[State, tuple[Command, ...], float], tuple[Any, ...]]
    observe: Callable[[State, Any, float], State]
    wake_at_s: Callable[[State], float | None]
    plans: bool = False
    decide_in_steps: Steps[State] | None = None
    shorten: Shorten = _all_or_nothing
    user_replies: UserReplies = ONLY_FAILURES

    @property
    def takes_commands(self) -> bool:
        """Users send all commands to admission."""
        return self.service == "admission"


def finished(steps: Generator[None, None, Result]) -> Result:
    """What the generator returns, without its pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            result: Result = ended.value
            return result


def _itself(pool: PoolState) -> PoolState:
    return pool


def _unchanged(pool: PoolState, local_event: object, now_s: float) -> PoolState:
    return pool


def _never(pool: PoolState) -> None:
    return None


def planner(
    service: str,
    decide: Callable[[PoolState, tuple[Command, ...], float], tuple[PlanEvent, ...]],
    wake_at_s: Callable[[PoolState], float | None] = _never,
    *,
    decide_in_steps: Steps[PoolState] | None = None,
    shorten: Shorten = _all_or_nothing,
    user_replies: UserReplies = ONLY_FAILURES,
) -> Policy[PoolState]:
    """The policy of a service whose state is the ledger alone: all its decisions can be replayed."""
    return Policy(
        service=service,
        start=_itself,
        pool=_itself,
        evolve=ledger_fold.evolve,
        decide=decide,
        observe=_unchanged,
        wake_at_s=wake_at_s,
        plans=True,
        decide_in_steps=decide_in_steps,
        shorten=shorten,
        user_replies=user_replies,
    )
