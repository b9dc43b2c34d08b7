"""Quotas: how much one tenant may be promised per day or per other window, independent of deadlines and free GPUs.

Source: ElasticFlow, section 4.4 (malicious users and admission control policies).
"""

from collections.abc import Iterable, Sequence

from elasticflow.shared.messages.pool_config import DAY_S, TenantQuota
from elasticflow.shared.state.pool import Usage


def quota_rejection(
    quota: TenantQuota, usage: Iterable[Usage], job_gpu_seconds: float, now_s: float, num_new_jobs: int = 1
) -> str | None:
    """Why a job of `job_gpu_seconds` exceeds the quota now, and when it no longer does; None if it is within the
    quota.

    usage: promises to the tenant; entries older than the longest window may be omitted. The fold groups promises of
    one
    minute under the time of the last one: no window exceeds the quota, and a retry may be told slightly later than
    needed.
    """
    used = sorted(usage, key=lambda used: used.at_s)
    if num_new_jobs and (why := _too_many_jobs(quota.max_jobs_per_day, used, now_s)):
        return why
    hours = job_gpu_seconds / 3600
    if quota.max_gpu_hours_per_day is not None:
        why = _too_many_hours(quota.max_gpu_hours_per_day, used, hours, DAY_S, "a day", now_s)
        if why is not None:
            return why
    for budget in quota.budgets:
        window = f"in {budget.window_s / 3600:g} h"
        why = _too_many_hours(budget.max_gpu_hours, used, hours, budget.window_s, window, now_s)
        if why is not None:
            return why
    return None


def _too_many_jobs(max_jobs: int | None, used: Sequence[Usage], now_s: float) -> str | None:
    recent = [usage for usage in used if usage.at_s > now_s - DAY_S]
    num_jobs = sum(usage.num_jobs for usage in recent)
    if max_jobs is None or num_jobs < max_jobs:
        return None
    said = f"{num_jobs} of {max_jobs} jobs a day are used"
    for usage in recent:
        num_jobs -= usage.num_jobs
        if num_jobs < max_jobs:
            return f"{said}; {_retry(usage.at_s + DAY_S, now_s)}"
    return f"{said}; no job is allowed"


def _too_many_hours(
    max_gpu_hours: float, used: Sequence[Usage], job_hours: float, window_s: float, window: str, now_s: float
) -> str | None:
    """window: the name of the window in the message."""
    recent = [usage for usage in used if usage.at_s > now_s - window_s]
    spent_hours = sum(usage.gpu_seconds for usage in recent) / 3600
    if spent_hours + job_hours <= max_gpu_hours:
        return None
    said = (
        f"{spent_hours:.2f} of {max_gpu_hours:.2f} GPU-hours {window} are used "
        f"and the job needs {job_hours:.2f}"
    )
    for usage in recent:
        spent_hours -= usage.gpu_seconds / 3600
        if spent_hours + job_hours <= max_gpu_hours:
            return f"{said}; {_retry(usage.at_s + window_s, now_s)}"
    return f"{said}; it never fits"


def _retry(at_s: float, now_s: float) -> str:
    return f"retry in {at_s - now_s:.0f} s"
