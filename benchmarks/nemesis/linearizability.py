"""Is a history of concurrent operations linearizable? (Herlihy and Wing 1990; the search of Wing and Gong 1993, which
remembers where it has been, after Lowe 2017.)

The model is a pool that has space for one job: all calls of all clients act on the same place. Each job needs more than
half of the pool until its deadline. So a submission is admitted exactly while no job is live, an amendment and a
cancellation are accepted exactly for the live job, and a quote tells whether there is one.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

AnyCall = TypeVar("AnyCall")
State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[AnyCall]):
    """One call of a client. reply: None if it is unknown; then the call may take effect at any later time, or never."""

    call: AnyCall
    reply: object | None
    invoked_s: float
    returned_s: float = math.inf


Model = Callable[[State, AnyCall, object | None], Iterable[State]]
"""The states that may follow a state by a call with this reply (None: with any). No state: the reply is impossible."""


def linearization(
    history: Sequence[Operation[AnyCall]], model: Model[State, AnyCall], initial: State
) -> tuple[Operation[AnyCall], ...] | None:
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


def _next(operations: Sequence[Operation[AnyCall]], done: int) -> list[int]:
    """The operations that are left, and began before any of the others that are left returned."""
    left = [index for index in range(len(operations)) if not done >> index & 1]
    first_return_s = min(operations[index].returned_s for index in left)
    return [index for index in left if operations[index].invoked_s <= first_return_s]


# --- the model: a pool with space for one job ----------------------------------------------------------


FIRST_ITERATIONS = 432_000


class Held(NamedTuple):
    """The live job and its iterations, "" and 0 while there is none; and the jobs that were cancelled."""

    job_id: str = ""
    iterations: int = 0
    cancelled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Submit:
    """Each job id is submitted by one call. Reply: whether it is admitted."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Amend:
    """Reply: whether it is accepted."""

    job_id: str
    iterations: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Reply: whether it is accepted; a second cancellation is, too."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Quote:
    """Reply: whether the pool is free."""


@dataclass(frozen=True, slots=True)
class Read:
    """Reply: the live job in the ledger and its iterations."""


Call = Submit | Amend | Cancel | Quote | Read


def exclusive_pool(held: Held, call: Call, reply: object | None) -> Iterator[Held]:
    """A `Model` of the pool."""
    follows, expected = held, False
    match call:
        case Submit(job_id=job_id) if not held.job_id:
            follows, expected = held._replace(job_id=job_id, iterations=FIRST_ITERATIONS), True
        case Amend(job_id=job_id, iterations=iterations) if held.job_id == job_id:
            follows, expected = held._replace(iterations=iterations), True
        case Cancel(job_id=job_id) if held.job_id == job_id:
            follows, expected = Held(cancelled=held.cancelled | {job_id}), True
        case Cancel(job_id=job_id):
            expected = job_id in held.cancelled
        case Quote():
            expected = not held.job_id
        case Read():
            expected = (held.job_id, held.iterations)
        case _:
            pass
    if reply is None or reply == expected:
        yield follows
