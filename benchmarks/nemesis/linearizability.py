"""Is a history of concurrent operations linearizable? (Herlihy and Wing 1990; the search of Wing and Gong 1993, which
remembers where it has been, after Lowe 2017.)"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Call = TypeVar("Call")
State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[Call]):
    """One call of a client. reply: None if it is unknown; then the call may take effect at any later time, or never."""

    call: Call
    reply: object | None
    invoked_s: float
    returned_s: float = math.inf


Model = Callable[[State, Call, object | None], Iterable[State]]
"""The states that may follow a state by a call with this reply (None: with any). No state: the reply is impossible."""


def linearization(
    history: Sequence[Operation[Call]], model: Model[State, Call], initial: State
) -> tuple[Operation[Call], ...] | None:
    """The operations in an order that explains all replies, in which none precedes one that returned before it began.

    None: there is no such order.
    """
    operations = sorted(history, key=lambda operation: operation.invoked_s)
    known = sum(1 << index for index, operation in enumerate(operations) if operation.reply is not None)
    been: set[tuple[int, State]] = set()
    paths: list[tuple[int, State, tuple[int, ...]]] = [(0, initial, ())]
    while paths:
        done, state, order = paths.pop()
        if done & known == known:
            return tuple(operations[index] for index in order)
        if (done, state) in been:
            continue
        been.add((done, state))
        steps = [
            (index, following)
            for index in _next(operations, done)
            for following in model(state, operations[index].call, operations[index].reply)
        ]
        # One that changes nothing can be taken at once: no other is possible later that is not possible then.
        idle = [step for step in steps if step[1] == state and operations[step[0]].reply is not None]
        paths += [(done | 1 << index, following, (*order, index)) for index, following in idle[:1] or steps]
    return None


def _next(operations: Sequence[Operation[Call]], done: int) -> list[int]:
    """The operations that are left, and began before any of the others that are left returned."""
    left = [index for index in range(len(operations)) if not done >> index & 1]
    first_return_s = min(operations[index].returned_s for index in left)
    return [index for index in left if operations[index].invoked_s <= first_return_s]
