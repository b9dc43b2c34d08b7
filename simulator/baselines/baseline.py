"""What a baseline is: a pure rule for who comes in and who gets how many GPUs now, and the few steps that many share.

How a baseline takes the place of the services' policies is said in `adapter`, which of them there are in `catalogue`.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shared.messages.job import JobClass
from shared.scheduling.resize_cost import ResizeCost
from shared.scheduling.scaling_curve import ScalingCurve

LEASE_TOLERANCE_S = 1.0  # a scheduler that wakes a little after the end of a lease is at that end


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineJob:
    """A live job as a baseline sees it at one instant; each looks at what its paper assumes to be known.

    curve: at the levels that this pool has.
    requested_num_gpus: what its user asked for; any number.
    attained_gpu_seconds: of all GPUs held so far, stalls included.
    held_since_s: since when it holds current_num_gpus (also none: since when it waits).
    num_resizes: changes from one share to another so far, starts and stops included.
    """

    job_id: str
    submitted_at_s: float
    deadline_s: float | None
    job_class: JobClass
    curve: ScalingCurve
    remaining_iterations: float
    num_iterations: float
    requested_num_gpus: int
    attained_gpu_seconds: float = 0.0
    current_num_gpus: int = 0
    held_since_s: float
    num_resizes: int = 0
    weight: float = 1.0
    resize_cost: ResizeCost = field(default_factory=ResizeCost)

    @property
    def due_s(self) -> float:
        """Its hard deadline; never, for all jobs that have none."""
        if self.deadline_s is None or self.job_class is not JobClass.SLO:
            return math.inf
        return self.deadline_s

    @property
    def gang(self) -> int:
        """GPUs of a rigid scheduler: as requested, in so far as the job and the pool can; never none."""
        levels = self.curve.num_gpus_L
        return levels[max(bisect_right(levels, self.requested_num_gpus) - 1, 0)]

    def level(self, most: int) -> int:
        """The fastest level on at most so many GPUs; 0 if there is none."""
        levels = self.curve.levels
        fitting = bisect_right(levels, most)
        return levels[fitting - 1] if fitting else 0

    def seconds_left(self, num_gpus: int, now_s: float) -> float:
        """Until it ends if it holds this many GPUs from now on, the change to them included."""
        rate = self.curve.throughput(num_gpus)
        return self.stall_s(num_gpus, now_s) + self.remaining_iterations / rate if rate else math.inf

    def stall_s(self, num_gpus: int, now_s: float) -> float:
        """Without progress from now on at this share; what is left of the last change if it is the present one."""
        cost_s = self.resize_cost.seconds(num_gpus)
        return cost_s if num_gpus != self.current_num_gpus else max(self.held_since_s + cost_s - now_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """GPUs of each job, jobs without any left out; valid_until_s: when to look again although nothing happened."""

    num_gpus_by_job: Mapping[str, int]
    valid_until_s: float = math.inf


class Baseline(Protocol):
    """Pure: the same jobs at the same instant give the same answer, in whatever order they are named."""

    @property
    def name(self) -> str: ...

    def admits(self, newcomer: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        """Whether the newcomer may join these jobs."""
        ...

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        """GPUs of each job from now on: levels of its curve, together at most num_gpus."""
        ...


class AdmitsAll:
    """What a scheduler without admission control says to everybody."""

    def admits(self, newcomer: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        return True


# --- orders ---------------------------------------------------------------------------------------------


def by_deadline(job: BaselineJob) -> tuple[float, float, float, str]:
    """Hard deadlines, then soft ones, then jobs without any in the order of their arrival."""
    soft_s = math.inf if job.deadline_s is None else job.deadline_s
    return job.due_s, soft_s, job.submitted_at_s, job.job_id


def by_arrival(job: BaselineJob) -> tuple[float, str]:
    return job.submitted_at_s, job.job_id


# --- rigid gangs and leases -----------------------------------------------------------------------------


def gangs(jobs_in_order: Iterable[BaselineJob], num_gpus: int) -> dict[str, int]:
    """Each job its whole gang, in this order; one that does not fit is passed over, and others may use the room."""
    shares: dict[str, int] = {}
    for job in jobs_in_order:
        if job.gang <= num_gpus:
            shares[job.job_id] = job.gang
            num_gpus -= job.gang
    return shares


def running_first(jobs_in_order: Sequence[BaselineJob]) -> list[BaselineJob]:
    """The same order, but whoever holds GPUs keeps them."""
    return sorted(jobs_in_order, key=lambda job: not job.current_num_gpus)


def at_lease_end(now_s: float, lease_s: float) -> bool:
    """Leases of all jobs end together, at multiples of their length: only so can a large gang come together."""
    return now_s % lease_s < LEASE_TOLERANCE_S


def next_lease_end_s(now_s: float, lease_s: float) -> float:
    return (now_s // lease_s + 1.0) * lease_s


def leased_gangs(jobs_in_order: Sequence[BaselineJob], num_gpus: int, now_s: float, lease_s: float) -> Shares:
    """Gangs for a lease, in this order, but whose lease has not ended keeps its GPUs.

    While nobody waits there is nothing to decide at its end.
    """

    def leased(job: BaselineJob) -> bool:
        ended = at_lease_end(now_s, lease_s) and now_s - job.held_since_s >= LEASE_TOLERANCE_S
        return job.current_num_gpus > 0 and not ended

    shares = gangs(sorted(jobs_in_order, key=lambda job: not leased(job)), num_gpus)
    waiting = len(shares) < len(jobs_in_order)
    return Shares(
        num_gpus_by_job=shares, valid_until_s=next_lease_end_s(now_s, lease_s) if waiting else math.inf
    )
