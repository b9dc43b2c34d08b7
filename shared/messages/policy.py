"""The one shape of a service's judgement, and of the loop's other caller, the simulator.

    history --evolve--> state --decide--> what follows

Pure functions over frozen values: no clock, no bus, no logger, no chance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shared.messages import lifecycle
from shared.messages.commands import Command
from shared.messages.events import Event, PlanDecided, PlanEvent
from shared.messages.pool_state import PoolState

State = TypeVar("State")

LedgerMessage = Event | PlanDecided | None  # None: unreadable, see lifecycle.evolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Generic[State]):
    """What a service knows and wants.

    start(pool) -> the state to begin with; pool(state) -> the folded ledger inside it.
    evolve(state, message, sequence) -> the state after one message of the ledger.
    observe(state, note, now_s) -> the state after something local: a heartbeat, a worker's word, an action.
    decide(state, commands, now_s) -> what follows, in order: decisions (appended as one `PlanDecided` by
        compare-and-set), facts (appended to their own subjects), or actions for the service's own shell.
    wake_at_s(state) -> when to decide again although nothing happened; None: never.
    """

    service: str
    start: Callable[[PoolState], State]
    pool: Callable[[State], PoolState]
    evolve: Callable[[State, LedgerMessage, int], State]
    decide: Callable[[State, tuple[Command, ...], float], tuple[Any, ...]]
    observe: Callable[[State, Any, float], State]
    wake_at_s: Callable[[State], float | None]


def _itself(pool: PoolState) -> PoolState:
    return pool


def _unmoved(pool: PoolState, note: object, now_s: float) -> PoolState:
    return pool


def _never(pool: PoolState) -> None:
    return None


def planner(
    service: str,
    decide: Callable[[PoolState, tuple[Command, ...], float], tuple[PlanEvent, ...]],
    wake_at_s: Callable[[PoolState], float | None] = _never,
) -> Policy[PoolState]:
    """The policy of a service that knows the ledger and nothing else: all its decisions can be replayed."""
    return Policy(
        service=service,
        start=_itself,
        pool=_itself,
        evolve=lifecycle.evolve,
        decide=decide,
        observe=_unmoved,
        wake_at_s=wake_at_s,
    )
