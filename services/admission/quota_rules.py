"""Rules beside the schedule: what an operator does not grant a tenant, however many GPUs are free.

`RULES` is the extension point. Each rule looks at a request and returns an objection or None; the tenant reads the
first objection. Rules are asked before a profiling run and again before a promise.
Source: ElasticFlow, section 4.4 (malicious users and admission control policies).
"""

from collections.abc import Callable
from dataclasses import dataclass

from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.scheduling.admission.quota import quota_rejection
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a tenant is about to receive. gpu_seconds: 0 while the job's speed is unknown."""

    job_id: str
    tenant: str
    gpu_seconds: float
    num_new_jobs: int = 1  # 0 where one is amended
    at_s: float


Rule = Callable[[PoolState, Request], str | None]


def quota_rule(state: PoolState, request: Request) -> str | None:
    """Limits jobs and GPU-hours in any 24 hours, or in any window of a budget.

    Profiling runs and quote reservations count too.
    """
    limits = state.config.quota(request.tenant)
    if limits == TenantQuota():
        return None
    profiling = (
        Usage(at_s=job.decided_at_s, gpu_seconds=0.0)
        for job in state.live_jobs.values()
        if job.phase is Phase.PROFILING and job.tenant == request.tenant and job.job_id != request.job_id
    )
    reserved = (
        Usage(at_s=quote.at_s, gpu_seconds=quote.gpu_seconds)
        for quote in state.quotes_at(request.at_s)
        if quote.tenant == request.tenant and quote.job_id != request.job_id
    )
    usage = (*state.usage.get(request.tenant, ()), *profiling, *reserved)
    return quota_rejection(limits, usage, request.gpu_seconds, request.at_s, request.num_new_jobs)


RULES: tuple[Rule, ...] = (quota_rule,)


def objection(state: PoolState, request: Request) -> str | None:
    """What the first rule that objects says."""
    return next((why for rule in RULES if (why := rule(state, request)) is not None), None)
