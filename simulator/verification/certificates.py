"""Certificates: what a decision of admission claims, in plain numbers that anyone can check.

An admission carries the whole schedule of every promise that it changes; a rejection carries an infeasibility
certificate. A packing shows on which blocks all schedules are, and that those who move can pay (docs/adr/0123). The
types here are independent of the scheduler's: `certificate_checker` shares no code with what it checks. All survive
JSON without the loss of a bit.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from pydantic import TypeAdapter

from elasticflow.shared.messages.rejection import InfeasibilityCertificate


class Level(NamedTuple):
    """A job on `num_gpus` GPUs: its speed, and how long it stops when it changes to them."""

    num_gpus: int
    iterations_per_s: float
    stop_s: float


class Held(NamedTuple):
    """`num_gpus` GPUs held within [start_s, end_s): the checker's own type, independent of `ShareSegment`."""

    start_s: float
    end_s: float
    num_gpus: int


class GpusFrom(NamedTuple):
    """There are `num_gpus` GPUs from from_s on, fewer than before: a node ends."""

    from_s: float
    num_gpus: int


class Packed(NamedTuple):
    """The GPUs of a job from an instant on: blocks of `size` GPUs that begin at these positions."""

    job_id: str
    from_s: float
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedJob:
    """A job at the instant of a decision.

    levels: all numbers of GPUs that it runs on, in whole replicas of `gpus_per_replica`. stalled_until_s: it makes no
    progress before; another change of GPUs stops it anew.
    """

    job_id: str
    remaining_iterations: float
    deadline_s: float
    levels: tuple[Level, ...]
    current_num_gpus: int = 0
    stalled_until_s: float = 0.0
    gpus_per_replica: int = 1

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.remaining_iterations, self.deadline_s, self.stalled_until_s))):
            raise ValueError(f"numbers of {self.job_id} must be finite: {self}")
        if not _possible(self.levels):
            raise ValueError(f"levels of {self.job_id} must differ and need GPUs, a speed and a stop: {self.levels}")


@lru_cache(maxsize=1 << 12)  # a job's levels are the same in all its certificates
def _possible(levels: tuple[Level, ...]) -> bool:
    differ = len({level.num_gpus for level in levels}) == len(levels)
    return differ and all(n >= 1 and 0 < rate < math.inf and 0 <= stop_s < math.inf for n, rate, stop_s in levels)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedPromise:
    """A job and its schedule, in order of time. Only the part after the decision counts."""

    job: CertifiedJob
    schedule: tuple[Held, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseCertificate:
    """All promises can be kept together on `num_gpus` GPUs, of which fewer and fewer are there later.

    promises: the new and changed ones since the last certificate; the others are unchanged.
    ended: jobs whose promise has ended.
    """

    now_s: float
    num_gpus: int
    promises: tuple[CertifiedPromise, ...]
    ended: tuple[str, ...] = ()
    later: tuple[GpusFrom, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionCertificate:
    """`arriving_job` cannot be promised beside `promised`, the promised jobs that the proof counts."""

    now_s: float
    num_gpus: int
    arriving_job: CertifiedJob
    promised: tuple[CertifiedJob, ...]
    infeasibility_certificate: InfeasibilityCertificate
    later: tuple[GpusFrom, ...] = ()


class PackedNodes(NamedTuple):
    """num_gpus: of each node. within_a_node: the numbers of GPUs of which promises count on a block within a node; of
    others they count on such blocks of the next smaller of these numbers, anywhere."""

    num_gpus: tuple[int, ...]
    within_a_node: tuple[int, ...]

    @staticmethod
    def of(num_gpus: Sequence[int]) -> "PackedNodes":
        """These nodes, and the numbers of GPUs of which all blocks are within a node."""
        return PackedNodes(tuple(num_gpus), tuple(sorted(sizes_within_a_node(num_gpus))))

    def unit(self, num_gpus: int, gpus_per_replica: int = 1) -> int:
        """The size of the blocks that a job with so many GPUs needs: of whole replicas."""
        return max(max(size for size in self.within_a_node if size <= num_gpus), gpus_per_replica)


def sizes_within_a_node(num_gpus: Iterable[int]) -> set[int]:
    """The powers of two of which all buddy blocks are within a node, if nodes have so many GPUs each.

    A node is split into powers of two, largest first. What is left of two nodes makes a block on both.
    """
    nodes, found, num_apart, size = list(num_gpus), set[int](), 0, 1
    while size <= max(nodes, default=0):
        if not num_apart:
            found.add(size)
        num_apart = (num_apart + sum(bool(each & size) for each in nodes)) // 2
        size *= 2
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingCertificate:
    """All promised jobs have whole blocks at each instant, and those that move for that can pay the stops.

    nodes: see `PackedNodes`.
    positions: of the GPUs that each job has now, in the order of the nodes; a job that has just begun has none.
    packing: the blocks of each job from each instant on.
    """

    now_s: float
    nodes: PackedNodes
    promises: tuple[CertifiedPromise, ...]
    positions: Mapping[str, tuple[int, ...]]
    packing: tuple[Packed, ...]


Certificate = PromiseCertificate | PackingCertificate | RejectionCertificate
_CERTIFICATE: TypeAdapter[Certificate] = TypeAdapter(Certificate)


def to_json(certificate: Certificate) -> bytes:
    """The certificate as one line of JSON; floats are written so that they are read back to the last bit."""
    return _CERTIFICATE.dump_json(certificate)


def from_json(line: bytes) -> Certificate:
    """The certificate in this line. Raises pydantic's ValidationError, which names each bad field."""
    return _CERTIFICATE.validate_json(line)
