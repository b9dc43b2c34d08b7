"""Certificates: what a decision of admission claims, in plain numbers that anyone can check.

A yes carries the whole schedule of every promise that it moves; a no carries a witness. Neither knows a type of
the scheduler, both survive JSON without the loss of a bit, and `checker` judges them.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pydantic import TypeAdapter

from shared.messages.witness import Witness


class Level(NamedTuple):
    """How a job runs on `num_gpus` GPUs: its speed, and how long it stands still when it changes to them."""

    num_gpus: int
    iterations_per_s: float
    stop_s: float


class Held(NamedTuple):
    """`num_gpus` GPUs held within [start_s, end_s)."""

    start_s: float
    end_s: float
    num_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What is true of a job at the instant of a decision.

    levels: all numbers of GPUs that it runs on; stalled_until_s: no progress before, unless it changes its GPUs
    again, which stops it anew.
    """

    job_id: str
    remaining_iterations: float
    deadline_s: float
    levels: tuple[Level, ...]
    current_num_gpus: int = 0
    stalled_until_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.remaining_iterations, self.deadline_s, self.stalled_until_s))):
            raise ValueError(f"facts of {self.job_id} must be finite: {self}")
        if not _possible(self.levels):
            raise ValueError(
                f"levels of {self.job_id} must differ and need GPUs, a speed and a stop: {self.levels}"
            )


@lru_cache(maxsize=1 << 12)  # a job's levels are the same in all its certificates
def _possible(levels: tuple[Level, ...]) -> bool:
    differ = len({level.num_gpus for level in levels}) == len(levels)
    return differ and all(
        n >= 1 and 0 < rate < math.inf and 0 <= stop_s < math.inf for n, rate, stop_s in levels
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A job and the GPUs that it will hold, in order of time. What lies before the decision is over."""

    facts: JobFacts
    schedule: tuple[Held, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseCertificate:
    """A yes: every promise can be kept together on `num_gpus` GPUs.

    promises: those that are new or changed since the last certificate; the others go on as they were.
    ended: jobs that are promised no longer.
    """

    now_s: float
    num_gpus: int
    promises: tuple[Promise, ...]
    ended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCertificate:
    """A no: `newcomer` cannot be promised beside `promised`, of which only those that the witness needs are given."""

    now_s: float
    num_gpus: int
    newcomer: JobFacts
    promised: tuple[JobFacts, ...]
    witness: Witness


Certificate = PromiseCertificate | RefusalCertificate
_CERTIFICATE: TypeAdapter[Certificate] = TypeAdapter(Certificate)


def to_json(certificate: Certificate) -> bytes:
    """The certificate as one line of JSON; floats are written so that they are read back to the last bit."""
    return _CERTIFICATE.dump_json(certificate)


def from_json(line: bytes) -> Certificate:
    """The certificate in this line. Raises pydantic's ValidationError, which names each bad field."""
    return _CERTIFICATE.validate_json(line)
