"""What a baseline is: a pure rule for admission and for the GPUs of each job now; and the steps that many share.

`policy_catalogue` lists them by name, and puts one in the place of the services' policies.
"""

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A job was without GPUs for this long, before it got some again. attained_gpu_seconds: until then."""

    waited_s: float
    attained_gpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """What a trace says of a job and only baselines read.

    num_gpus: 0: no request, so the fewest GPUs that meet the deadline alone, or else the fewest on which the job runs.
    priority: None: that of its class.
    """

    num_gpus: int = 0
    priority: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineJob:
    """A live job as a baseline sees it at one instant; each baseline reads what its paper assumes to be known.

    curve: at the levels that this pool has.
    requested_num_gpus: what its user requested; any number.
    attained_gpu_seconds: of all GPUs held so far, stalls included.
    held_since_s: the start of holding current_num_gpus; without GPUs, the start of waiting.
    num_resizes: changes from one share to another so far, starts and stops included.
    waits: those that have ended, the first start's included, in their order.
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
    waits: tuple[Wait, ...] = ()
    weight: float = 1.0
    resize_cost: ResizeCost = field(default_factory=ResizeCost)

    @property
    def due_s(self) -> float:
        """Its hard deadline; infinity for jobs without one."""
        if self.deadline_s is None or self.job_class is not JobClass.SLO:
            return math.inf
        return self.deadline_s

    @property
    def gang(self) -> int:
        """GPUs of a rigid scheduler: the largest level up to the request, at least the lowest level."""
        levels = self.curve.num_gpus_L
        return levels[max(bisect_right(levels, self.requested_num_gpus) - 1, 0)]

    def level(self, most: int) -> int:
        """The fastest level on at most `most` GPUs; 0 if there is none."""
        levels = self.curve.levels
        fitting = bisect_right(levels, most)
        return levels[fitting - 1] if fitting else 0

    def seconds_left(self, num_gpus: int, now_s: float) -> float:
        """Seconds until its end on this many GPUs from now on, the resize included."""
        rate = self.curve.throughput(num_gpus)
        return self.stall_s(num_gpus, now_s) + self.remaining_iterations / rate if rate else math.inf

    def stall_s(self, num_gpus: int, now_s: float) -> float:
        """Seconds without progress from now on at this share.

        They are the rest of the last resize if it holds that share already.
        """
        cost_s = self.resize_cost.seconds(num_gpus)
        return cost_s if num_gpus != self.current_num_gpus else max(self.held_since_s + cost_s - now_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """GPUs of each job that has any. valid_until_s: when to decide again although nothing happened."""

    num_gpus_by_job: Mapping[str, int]
    valid_until_s: float = math.inf


class Baseline(Protocol):
    """Pure: the same jobs at the same instant give the same answer, in any order of the jobs."""

    @property
    def name(self) -> str: ...

    def admits(self, arriving: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        """Whether the arriving job may join these jobs."""
        ...

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        """GPUs of each job from now on: levels of its curve, together at most num_gpus."""
        ...


class AdmitsAll:
    """A scheduler without admission control."""

    def admits(self, arriving: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        return True


# --- orders ---------------------------------------------------------------------------------------------


def by_deadline(job: BaselineJob) -> tuple[float, float, float, str]:
    """Hard deadlines, then soft ones, then jobs without a deadline by arrival."""
    soft_s = math.inf if job.deadline_s is None else job.deadline_s
    return job.due_s, soft_s, job.submitted_at_s, job.job_id


def by_arrival(job: BaselineJob) -> tuple[float, str]:
    return job.submitted_at_s, job.job_id


# --- rigid gangs ----------------------------------------------------------------------------------------


def gangs(jobs_in_order: Iterable[BaselineJob], num_gpus: int) -> dict[str, int]:
    """Each job its whole gang, in this order; a gang that does not fit is skipped, and later ones may fit."""
    shares: dict[str, int] = {}
    for job in jobs_in_order:
        if job.gang <= num_gpus:
            shares[job.job_id] = job.gang
            num_gpus -= job.gang
    return shares


def running_first(jobs_in_order: Sequence[BaselineJob]) -> list[BaselineJob]:
    """The same order, but jobs that hold GPUs come first."""
    return sorted(jobs_in_order, key=lambda job: not job.current_num_gpus)


# --- growing shares -------------------------------------------------------------------------------------

Step = Callable[[BaselineJob, int, int], tuple[float, int]]
"""step(job, share, num_free) -> (gain of the best step up from this share, its level); gain 0: there is no step.

A gain must not grow when fewer GPUs are free: then a gain that still holds is the greatest of all.
"""


def grow(jobs_in_order: Sequence[BaselineJob], shares: dict[str, int], num_gpus: int, step: Step) -> None:
    """Give the GPUs that the shares leave free to the jobs in them, by greatest gain; ties go to the first job."""
    num_free = num_gpus - sum(shares.values())

    def best(position: int) -> tuple[float, int, int]:
        job = jobs_in_order[position]
        gain, level = step(job, shares[job.job_id], num_free)
        return -gain, position, level

    steps = [best(position) for position, job in enumerate(jobs_in_order) if job.job_id in shares]
    heapq.heapify(steps)
    while steps and num_free:
        queued = heapq.heappop(steps)
        _, position, level = queued
        now = best(position)
        if now == queued and now[0] < 0:
            job_id = jobs_in_order[position].job_id
            num_free -= level - shares[job_id]
            shares[job_id] = level
            now = best(position)
        if now[0] < 0:
            heapq.heappush(steps, now)
