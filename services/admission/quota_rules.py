"""Rules beside the schedule: what an operator does not grant a tenant, however many GPUs are free.

`RULES` is the extension point. Each rule looks at a request and returns an objection or None; the tenant reads the
first objection. Rules are asked before a profiling run and again before a promise. The quota is the only rule so far:
how much one tenant may be promised per day or per other window.
Source: ElasticFlow, section 4.4 (malicious users and admission control policies).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from elasticflow.shared.messages.pool_config import DAY_S, TenantQuota
from elasticflow.shared.state.gpu_types import shown_type
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState, Usage, gpu_hours_by_type


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRequest:
    """What a tenant is about to receive. gpu_seconds: 0 while the job's speed is unknown."""

    job_id: str
    tenant: str
    gpu_seconds: float
    num_new_jobs: int = 1  # 0 where one is amended
    at_s: float


Rule = Callable[[PoolState, QuotaRequest], str | None]


def quota_rule(state: PoolState, request: QuotaRequest) -> str | None:
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
        Usage.on(quote.spec.gpu_type, quote.gpu_seconds, quote.at_s)
        for quote in state.quotes_at(request.at_s)
        if quote.tenant == request.tenant and quote.job_id != request.job_id
    )
    usage = (*state.usage.get(request.tenant, ()), *profiling, *reserved)
    first_type = shown_type(state, "")
    return quota_rejection(
        limits, usage, request.gpu_seconds, request.at_s, request.num_new_jobs, first_type=first_type
    )


RULES: tuple[Rule, ...] = (quota_rule,)


def counts_as_demand(state: PoolState, request: QuotaRequest) -> bool:
    """Whether a submission may move the price: the quota bounds what a tenant asks for, promised or not."""
    limits = state.config.quota(request.tenant)
    if limits == TenantQuota():
        return True
    usage = (*state.usage.get(request.tenant, ()), *state.rejected_demand.get(request.tenant, ()))
    return quota_rejection(limits, usage, request.gpu_seconds, request.at_s) is None


def objection(state: PoolState, request: QuotaRequest) -> str | None:
    """What the first rule that objects says."""
    return next((why for rule in RULES if (why := rule(state, request)) is not None), None)


def quota_rejection(
    quota: TenantQuota,
    usage: Iterable[Usage],
    job_gpu_seconds: float,
    now_s: float,
    num_new_jobs: int = 1,
    *,
    first_type: str = "",
) -> str | None:
    """Why a job of `job_gpu_seconds` exceeds the quota now, and when it no longer does; None if it is within the
    quota.

    usage: promises to the tenant; entries older than the longest window may be omitted. The fold groups promises of
    one minute under the time of the last one: no window exceeds the quota, and a retry time may be slightly later than
    needed. first_type: the name of the pool's first type, if it has several: the answer then has the hours of each.
    """
    used = sorted(usage, key=lambda used: used.at_s)
    if num_new_jobs and (why := _too_many_jobs(quota.max_jobs_per_day, used, now_s)):
        return why
    hours = job_gpu_seconds / 3600
    if quota.max_gpu_hours_per_day is not None:
        why = _too_many_hours(quota.max_gpu_hours_per_day, used, hours, DAY_S, "a day", now_s, first_type)
        if why is not None:
            return why
    for budget in quota.budgets:
        window = f"in {budget.window_s / 3600:g} h"
        why = _too_many_hours(budget.max_gpu_hours, used, hours, budget.window_s, window, now_s, first_type)
        if why is not None:
            return why
    return None


def _too_many_jobs(max_jobs: int | None, used: Sequence[Usage], now_s: float) -> str | None:
    recent = [usage for usage in used if usage.at_s > now_s - DAY_S]
    num_jobs = sum(usage.num_jobs for usage in recent)
    if max_jobs is None or num_jobs < max_jobs:
        return None
    used_up = f"{num_jobs} of {max_jobs} jobs a day are used"
    for usage in recent:
        num_jobs -= usage.num_jobs
        if num_jobs < max_jobs:
            return f"{used_up}; {_retry(usage.at_s + DAY_S, now_s)}"
    return f"{used_up}; no job is allowed"


def _too_many_hours(
    max_gpu_hours: float,
    used: Sequence[Usage],
    job_hours: float,
    window_s: float,
    window: str,
    now_s: float,
    first_type: str,
) -> str | None:
    """window: the name of the window in the message."""
    recent = [usage for usage in used if usage.at_s > now_s - window_s]
    spent_hours = sum(usage.gpu_seconds for usage in recent) / 3600
    if spent_hours + job_hours <= max_gpu_hours:
        return None
    used_up = (
        f"{spent_hours:.2f} of {max_gpu_hours:.2f} GPU-hours {window} are used{_by_type(recent, first_type)} "
        f"and the job needs {job_hours:.2f}"
    )
    for usage in recent:
        spent_hours -= usage.gpu_seconds / 3600
        if spent_hours + job_hours <= max_gpu_hours:
            return f"{used_up}; {_retry(usage.at_s + window_s, now_s)}"
    return f"{used_up}; it never fits"


def _by_type(used: Sequence[Usage], first_type: str) -> str:
    """The used GPU-hours by type, as " (3.00 on V100, 1.00 on P100)", where a pool has several types."""
    hours = gpu_hours_by_type(used, first_type)
    named = (f"{spent:.2f} on {gpu_type}" for gpu_type, spent in hours.items())
    return f" ({', '.join(named)})" if first_type and hours else ""


def _retry(at_s: float, now_s: float) -> str:
    return f"retry in {at_s - now_s:.0f} s"
