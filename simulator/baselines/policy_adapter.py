"""A baseline in the place of the services' admission and allocator: the same `decide`, on the same ledger.

A baseline promises nothing: its `JobAdmitted` carries an empty minimum satisfactory share and no GPU-seconds, so there
is no certificate to check. What it needs of the past beyond the ledger's fold is `JobAccounting`, its own fold over
the decided allocations.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

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
    PlanEvent,
    QuoteRejected,
)
from elasticflow.shared.scheduling.jobs.scheduler_view import profile_known
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState, spec_of
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob, UserRequest
from elasticflow.simulator.baselines.pool_view import JobAccounting, PoolView, evolve

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
