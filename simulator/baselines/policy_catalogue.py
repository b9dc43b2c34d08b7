"""Every policy that `--policy` can name: the services' own, under each admission setting, and the baselines."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from elasticflow.services.admission import policy as admission_policy
from elasticflow.services.allocator import policy as allocator_policy
from elasticflow.services.placement import policy as placement_policy
from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    Command,
    RequestCheckpoint,
    ReserveQuote,
    SetGpuLimits,
    SubmitJob,
)
from elasticflow.shared.messages.events import (
    AdmissionEvent,
    AllocationDecided,
    AmendRejected,
    CancelRejected,
    CheckpointRejected,
    GpuLimitsRejected,
    JobAdmitted,
    JobCancelled,
    JobRejected,
    PlanDecided,
    PlanEvent,
    QuoteRejected,
)
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    iteration_at,
    known_curve,
    planned_deadline_s,
    profile_known,
    resize_cost,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.policy import LedgerMessage, Policy
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob, UserRequest, Wait
from elasticflow.simulator.baselines.edf import (
    EarliestDeadlineFirst,
    EarliestDeadlineFirstElastic,
    EarliestDeadlineFirstWithAdmission,
)
from elasticflow.simulator.baselines.elasticflow_algorithms import ElasticFlowAlgorithms
from elasticflow.simulator.baselines.lease_schedulers import Chronus, Gandiva, Themis, ThemisInSlots
from elasticflow.simulator.baselines.schedulers_without_deadlines import (
    ElasticTiresias,
    Pollux,
    StaticPriority,
    Tiresias,
    WeightedFairSharing,
)

# --- policy adapter -----------------------------------------------------------------------------------
# A baseline in the place of the services' admission and allocator: the same `decide`, on the same ledger.
#
# A baseline promises nothing: its `JobAdmitted` carries an empty minimum satisfactory share and no GPU-seconds, so
# there is no certificate to check. What it needs of the past beyond the ledger's fold is `JobAccounting`, its own fold
# over the decided allocations.

# --- pool view -----------------------------------------------------------------------------------------
# The pool as a baseline sees it at one instant, and the past of its jobs, which the ledger's fold does not keep.

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


# --- policy adapter ------------------------------------------------------------------------------------

SHORTEST_PLAN_S = 0.05
NO_REQUESTS: Mapping[str, UserRequest] = {}


def baseline_policies(
    baseline: Baseline, requests: Mapping[str, UserRequest] = NO_REQUESTS
) -> tuple[Policy[JobAccounting], Policy[JobAccounting]]:
    """Admission and allocator that decide as this baseline does.

    requests: by job id, as a trace says.
    """
    adapter = _Adapter(baseline, requests)
    return _policy("admission", adapter.admission, _never), _policy("allocator", adapter.allocation, _due_s)


@dataclass(frozen=True, slots=True)
class _Adapter:
    baseline: Baseline
    requests: Mapping[str, UserRequest]

    def admission(
        self, accounting: JobAccounting, commands: tuple[Command, ...], now_s: float
    ) -> tuple[AdmissionEvent, ...]:
        """Answer each command on the state after the ones before it; then jobs whose profile is complete."""
        pool, events = accounting.pool, list[AdmissionEvent]()
        profiling = [job for job in pool.live_jobs.values() if job.phase is Phase.PROFILING]
        if not commands and not profiling:
            return ()
        view = PoolView(accounting, self.requests, now_s)
        jobs = {job.job_id: job for job in view.jobs()}

        def emit(event: AdmissionEvent) -> None:
            nonlocal pool
            events.append(event)
            pool = ledger_fold.apply(pool, event, pool.sequence + 1)
            if isinstance(event, JobCancelled):
                jobs.pop(event.job_id, None)

        for command in commands:
            if isinstance(command, CancelJob):
                emit(_cancelled(pool, command, now_s))
            elif isinstance(command, ReserveQuote):
                why = f"{self.baseline.name} reserves nothing"
                emit(QuoteRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s))
            elif isinstance(command, AmendJob):
                why = f"{self.baseline.name} promises nothing, so nothing can be amended"
                emit(AmendRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s))
            elif isinstance(command, RequestCheckpoint):
                why = f"{self.baseline.name} takes no checkpoints"
                emit(CheckpointRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s))
            elif isinstance(command, SetGpuLimits):
                why = f"{self.baseline.name} takes no GPU limits"
                emit(GpuLimitsRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s))
            elif isinstance(command, SubmitJob) and pool.job(command.job_id) is None:
                emit(self._answer(view, jobs, _arriving(pool, command, now_s), now_s))
        for job in sorted(profiling, key=lambda job: (job.decided_sequence, job.job_id)):
            if job.job_id in pool.live_jobs and profile_known(pool, spec_of(job)):
                emit(self._answer(view, jobs, job, now_s))
        return tuple(events)

    def allocation(
        self, accounting: JobAccounting, commands: tuple[Command, ...], now_s: float
    ) -> tuple[PlanEvent, ...]:
        """New shares after a scheduling event, or when the baseline asked to decide again."""
        pool, due_s = accounting.pool, _due_s(accounting)
        if not (due_s is not None and now_s >= due_s) and (pool.scheduling_event_sequence <= pool.allocation_based_on):
            return ()
        view = PoolView(accounting, self.requests, now_s)
        shares = self.baseline.shares(view.jobs(), view.num_gpus, now_s)
        until_s = max(shares.valid_until_s, now_s + SHORTEST_PLAN_S)
        return (
            AllocationDecided(
                num_gpus_by_job=shares.num_gpus_by_job,
                valid_until_s=None if math.isinf(until_s) else until_s,
                at_s=now_s,
            ),
        )

    def _answer(
        self, view: PoolView, jobs: dict[str, BaselineJob], job: Job, now_s: float
    ) -> JobAdmitted | JobRejected:
        """Admit or reject one job; an admitted one joins `jobs`."""
        arriving = view.job(job)
        refused = partial(
            JobRejected,
            job_id=job.job_id,
            tenant=job.tenant,
            spec=job.spec,
            deadline_s=job.deadline_s,
            at_s=now_s,
        )
        if arriving is None:
            why = f"its throughput on 1 to {view.num_gpus} GPUs is unknown, or it does not run there"
            return refused(reason="unrunnable", explanation=why)
        if not self.baseline.admits(arriving, tuple(jobs.values()), view.num_gpus, now_s):
            why = f"{self.baseline.name} expects this job, or another one because of it, to miss its deadline"
            return refused(reason="deadline", explanation=why)
        jobs[job.job_id] = arriving
        return JobAdmitted(
            job_id=job.job_id,
            tenant=job.tenant,
            spec=spec_of(job),
            deadline_s=job.deadline_s,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=now_s,
        )


def _arriving(pool: PoolState, command: SubmitJob, now_s: float) -> Job:
    """The job as it would be after its admission."""
    return Job(
        job_id=command.job_id,
        tenant=command.tenant,
        spec=command.spec,
        phase=Phase.ADMITTED,
        decided_at_s=now_s,
        decided_sequence=pool.sequence,
        deadline_s=command.spec.resolved_deadline_s(now_s),
    )


def _cancelled(pool: PoolState, command: CancelJob, now_s: float) -> AdmissionEvent:
    job = pool.live_jobs.get(command.job_id)
    if job is None or job.tenant != command.tenant:
        why = f"tenant {command.tenant} has no live job {command.job_id}"
        return CancelRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
    return JobCancelled(job_id=command.job_id, reason=command.reason, at_s=now_s)


def _policy(
    service: str,
    decide: Callable[[JobAccounting, tuple[Command, ...], float], tuple[PlanEvent, ...]],
    wake_at_s: Callable[[JobAccounting], float | None],
) -> Policy[JobAccounting]:
    return Policy(
        service=service,
        start=lambda pool: JobAccounting(pool=pool),
        pool=lambda accounting: accounting.pool,
        evolve=evolve,
        decide=decide,
        observe=lambda accounting, event, now_s: accounting,
        wake_at_s=wake_at_s,
        plans=True,
    )


def _due_s(accounting: JobAccounting) -> float | None:
    return accounting.pool.allocation_valid_until_s


def _never(accounting: JobAccounting) -> None:
    return None


AdmissionPolicy = Literal["first-come", "selective"]
OURS: tuple[AdmissionPolicy, ...] = ("selective", "first-come")
WITH_BLOCKS = (*OURS, "elasticflow-algorithms")  # jobs migrate for each other's buddy blocks: ElasticFlow, section 4.3

_BASELINES: tuple[Baseline, ...] = (
    ElasticFlowAlgorithms(),
    EarliestDeadlineFirst(),
    EarliestDeadlineFirst("edf-64", most_gpus=64),
    EarliestDeadlineFirstWithAdmission(),
    EarliestDeadlineFirstWithAdmission("edf-admission-64", most_gpus=64),
    EarliestDeadlineFirstElastic(),
    ElasticFlowAlgorithms("edf-elastic-reserving", admission=False),
    Gandiva(),
    Tiresias(),
    Tiresias("tiresias-3250-7200", quanta_gpu_s=(3_250.0, 7_200.0)),
    ElasticTiresias(),
    Themis(),
    ThemisInSlots("themis-slots-60", slot_s=60.0),
    ThemisInSlots("themis-slots-240", slot_s=240.0),
    Chronus(),
    Chronus("chronus-ticks", slack=0.1, waits_for_ticks=True),
    Pollux(),
    WeightedFairSharing(),
    StaticPriority(),
)
BASELINES: Mapping[str, Baseline] = {baseline.name: baseline for baseline in _BASELINES}
POLICY_NAMES = (*OURS, *BASELINES)


def planners() -> Mapping[str, Policy[PoolState]]:
    """The services' own policies, in the order in which they are asked. They share one cache."""
    cache = PlanningCache()
    services = (admission_policy, allocator_policy, placement_policy)
    policies = (service.with_cache(cache) for service in services)
    return {policy.service: policy for policy in policies}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPolicies:
    """Policies by service, in the order in which they are asked. admission: the pool's setting."""

    name: str
    policies: Mapping[str, Policy[Any]]
    admission: AdmissionPolicy = "selective"


def policies_named(name: str, requests: Mapping[str, UserRequest] = NO_REQUESTS) -> NamedPolicies:
    """The policies of this name. BadSettings for an unknown name.

    requests: by job id; baselines may read them.
    """
    for admission in OURS:
        if name == admission:
            return NamedPolicies(name=name, policies=planners(), admission=admission)
    baseline = BASELINES.get(name)
    if baseline is None:
        raise BadSettings((f"policy {name!r} must be one of {', '.join(POLICY_NAMES)}",))
    admission, allocator = baseline_policies(baseline, requests)
    return NamedPolicies(name=name, policies={**planners(), "admission": admission, "allocator": allocator})
