"""Rules beside the schedule: whom an operator would not promise more, whatever is free.

The hook is `RULES`: each rule looks at a request and says why not, or None; the first that objects is told to the
tenant. Rules are asked before a pre-run and again before a promise.
Source: ElasticFlow, section 4.4 (malicious users and admission control policies).
"""

from collections.abc import Callable
from dataclasses import dataclass

from shared.messages.cluster import TenantQuota
from shared.messages.job_state import Phase
from shared.messages.pool_state import PoolState, Usage
from shared.scheduling.quota import quota_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a tenant is about to be given. gpu_seconds: 0 while its speed is not known."""

    job_id: str
    tenant: str
    gpu_seconds: float
    num_new_jobs: int = 1  # 0 where one is amended
    at_s: float


Rule = Callable[[PoolState, Request], str | None]


def quota_rule(state: PoolState, request: Request) -> str | None:
    """Jobs and GPU-hours in any 24 hours, or any window of a budget. A job that is still being measured and a held
    quote count too."""
    limits = state.config.quota(request.tenant)
    if limits == TenantQuota():
        return None
    measured = (
        Usage(at_s=job.decided_at_s, gpu_seconds=0.0)
        for job in state.live_jobs.values()
        if job.phase is Phase.PROFILING and job.tenant == request.tenant and job.job_id != request.job_id
    )
    held = (
        Usage(at_s=quote.at_s, gpu_seconds=quote.gpu_seconds)
        for quote in state.quotes_at(request.at_s)
        if quote.tenant == request.tenant and quote.job_id != request.job_id
    )
    usage = (*state.usage.get(request.tenant, ()), *measured, *held)
    return quota_refusal(limits, usage, request.gpu_seconds, request.at_s, request.num_new_jobs)


RULES: tuple[Rule, ...] = (quota_rule,)


def objection(state: PoolState, request: Request) -> str | None:
    """What the first rule that objects says."""
    return next((why for rule in RULES if (why := rule(state, request)) is not None), None)
