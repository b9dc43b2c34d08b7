"""The pool as a baseline sees it at one instant, and the past of its jobs, which the ledger's fold does not keep."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elasticflow.shared.messages.events import AllocationDecided, PlanDecided
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    iteration_at,
    known_curve,
    planned_deadline_s,
    resize_cost,
)
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.baselines.baseline import BaselineJob, UserRequest, Wait

WEIGHTS: Mapping[JobClass, float] = {
    JobClass.SLO: 10.0,
    JobClass.SOFT: 5.0,
    JobClass.BEST_EFFORT: 1.0,
    JobClass.PADDING: 0.1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """The past of one job. attained_gpu_seconds: up to held_since_s. waits: those that have ended."""

    num_gpus: int = 0
    held_since_s: float
    attained_gpu_seconds: float = 0.0
    num_resizes: int = 0
    waits: tuple[Wait, ...] = ()

    def until(self, now_s: float) -> float:
        """GPU-seconds attained by then."""
        return self.attained_gpu_seconds + self.num_gpus * max(now_s - self.held_since_s, 0.0)

    def change(self, num_gpus: int, now_s: float) -> "Tenure":
        if num_gpus == self.num_gpus:
            return self
        attained_gpu_seconds, waits = self.until(now_s), self.waits
        if not self.num_gpus:
            waits += (Wait(waited_s=now_s - self.held_since_s, attained_gpu_seconds=attained_gpu_seconds),)
        return Tenure(
            num_gpus=num_gpus,
            held_since_s=now_s,
            attained_gpu_seconds=attained_gpu_seconds,
            num_resizes=self.num_resizes + 1,
            waits=waits,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAccounting:
    """The folded ledger, and the tenures of its live jobs: the state of a baseline's policies."""

    pool: PoolState
    tenures: Mapping[str, Tenure] = field(default_factory=dict[str, Tenure])

    def tenure(self, job: Job) -> Tenure:
        return self.tenures.get(job.job_id) or Tenure(held_since_s=job.decided_at_s)


def evolve(accounting: JobAccounting, message: LedgerMessage, sequence: int) -> JobAccounting:
    """The ledger's fold, and the tenures that follow from each allocation."""
    if sequence <= accounting.pool.sequence:
        return accounting
    accounting = replace(accounting, pool=ledger_fold.evolve(accounting.pool, message, sequence))
    if isinstance(message, PlanDecided):
        for event in message.events:
            if isinstance(event, AllocationDecided):
                accounting = _allocated(accounting, event.at_s)
    return accounting


def _allocated(accounting: JobAccounting, now_s: float) -> JobAccounting:
    live = accounting.pool.live_jobs.values()
    return replace(accounting, tenures={job.job_id: accounting.tenure(job).change(job.num_gpus, now_s) for job in live})


class PoolView:
    """The pool at one decision. requests: by job id."""

    def __init__(self, accounting: JobAccounting, requests: Mapping[str, UserRequest], now_s: float) -> None:
        self._accounting, self._requests, self._now_s = accounting, requests, now_s
        self._cost = resize_cost(accounting.pool)
        self._curves: dict[str, ScalingCurve | None] = {}  # by profile
        self.num_gpus = accounting.pool.num_gpus

    def jobs(self) -> list[BaselineJob]:
        """The admitted jobs whose throughput is known, by id."""
        live_jobs = self._accounting.pool.live_jobs
        admitted = (live_jobs[job_id] for job_id in sorted(live_jobs))
        views = (self.job(job) for job in admitted if job.phase is Phase.ADMITTED)
        return [job for job in views if job is not None]

    def job(self, job: Job) -> BaselineJob | None:
        """One job, admitted or arriving; None if its throughput on this pool is unknown."""
        spec, tenure, config = spec_of(job), self._accounting.tenure(job), self._accounting.pool.config
        curve = self._curve(spec)
        if curve is None:
            return None
        request = self._requests.get(job.job_id, UserRequest())
        planned_s = planned_deadline_s(self._accounting.pool, job.deadline_s)
        done = iteration_at(job, curve, self._now_s, config.progress_timeout_s)
        view = BaselineJob(
            job_id=job.job_id,
            submitted_at_s=job.decided_at_s,
            deadline_s=planned_s if math.isfinite(planned_s) else None,
            job_class=spec.job_class,
            curve=curve,
            remaining_iterations=max(spec.max_iterations - done, 0.0),
            num_iterations=float(spec.max_iterations),
            requested_num_gpus=request.num_gpus,
            attained_gpu_seconds=tenure.until(self._now_s),
            current_num_gpus=tenure.num_gpus,
            held_since_s=tenure.held_since_s,
            num_resizes=tenure.num_resizes,
            waits=tenure.waits,
            weight=WEIGHTS[spec.job_class] if request.priority is None else request.priority,
            resize_cost=self._cost,
        )
        return view if view.requested_num_gpus else replace(view, requested_num_gpus=_fewest_in_time(view))

    def _curve(self, spec: JobSpec) -> ScalingCurve | None:
        profile_key = spec.profile_key
        if profile_key not in self._curves:
            self._curves[profile_key] = known_curve(with_profile(self._accounting.pool, spec), spec)
        return self._curves[profile_key]


def _fewest_in_time(job: BaselineJob) -> int:
    """The request of a user who knows the curve."""
    for level in job.curve.levels:
        needed_s = job.resize_cost.seconds(level) + job.num_iterations / job.curve.throughput(level)
        if job.deadline_s is not None and job.submitted_at_s + needed_s <= job.deadline_s:
            return level
    return job.curve.levels[0]
