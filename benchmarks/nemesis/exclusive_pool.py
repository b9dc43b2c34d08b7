"""What a pool must do that has space for one job: all calls of all clients act on the same place.

Each job needs more than half of the pool until its deadline. So a submission is admitted exactly while no job is live,
an amendment and a cancellation are accepted exactly for the live job, and a quote tells whether there is one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
