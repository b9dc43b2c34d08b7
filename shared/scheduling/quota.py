"""How much one tenant may be promised a day. A policy beside admission: it knows no deadlines and no free GPUs.

Source: ElasticFlow, section 4.4 (malicious users and admission control policies).
"""

from collections.abc import Iterable

from shared.messages.cluster import TenantQuota
from shared.messages.pool_state import Usage

WINDOW_S = 24 * 3600.0


def quota_refusal(
    quota: TenantQuota, usage: Iterable[Usage], job_gpu_seconds: float, now_s: float, num_new_jobs: int = 1
) -> str | None:
    """Why a job of `job_gpu_seconds` is over the quota now, and when it no longer is; None if it is within.

    usage: what the tenant was promised; older than a day may be left out. What was promised in one minute counts as
    of the last of it: never more than the quota in any 24 hours, and up to a minute later than need be.
    """
    recent = sorted((u for u in usage if u.at_s > now_s - WINDOW_S), key=lambda used: used.at_s)
    max_jobs, max_gpu_hours = quota.max_jobs_per_day, quota.max_gpu_hours_per_day
    num_jobs = sum(used.num_jobs for used in recent)
    if max_jobs is not None and num_new_jobs and num_jobs >= max_jobs:
        said = f"{num_jobs} of {max_jobs} jobs a day are used"
        for used in recent:
            num_jobs -= used.num_jobs
            if num_jobs < max_jobs:
                return f"{said}; {_retry(used.at_s, now_s)}"
        return f"{said}; no job is allowed"
    if max_gpu_hours is None:
        return None
    spent_hours, job_hours = sum(used.gpu_seconds for used in recent) / 3600, job_gpu_seconds / 3600
    if spent_hours + job_hours <= max_gpu_hours:
        return None
    said = (
        f"{spent_hours:.2f} of {max_gpu_hours:.2f} GPU-hours a day are used and the job needs {job_hours:.2f}"
    )
    for used in recent:
        spent_hours -= used.gpu_seconds / 3600
        if spent_hours + job_hours <= max_gpu_hours:
            return f"{said}; {_retry(used.at_s, now_s)}"
    return f"{said}; it never fits"


def _retry(oldest_s: float, now_s: float) -> str:
    return f"retry in {oldest_s + WINDOW_S - now_s:.0f} s"
