"""How much one tenant may be promised a day. A policy beside admission: it knows no deadlines and no free GPUs.

Source: ElasticFlow, section 4.4 (malicious users and admission control policies).
"""

from dataclasses import dataclass

WINDOW_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Bounds over any 24 hours; None: no bound."""

    max_jobs_per_day: int | None = None
    max_gpu_hours_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """The jobs of a tenant admitted so far: when, and the GPU-seconds promised to each; older ones may be left out."""

    admitted_at_s: tuple[float, ...] = ()
    gpu_seconds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.admitted_at_s) != len(self.gpu_seconds):
            raise ValueError("usage needs the GPU-seconds of each admitted job")


def quota_refusal(quota: Quota, usage: TenantUsage, job_gpu_seconds: float, now_s: float) -> str | None:
    """Why a job of `job_gpu_seconds` is over the quota now, and when it no longer is; None if it is within."""
    recent = sorted(
        (at_s, spent)
        for at_s, spent in zip(usage.admitted_at_s, usage.gpu_seconds, strict=True)
        if at_s > now_s - WINDOW_S
    )
    max_jobs, max_gpu_hours = quota.max_jobs_per_day, quota.max_gpu_hours_per_day
    if max_jobs is not None and len(recent) >= max_jobs:
        said = f"{len(recent)} of {max_jobs} jobs a day are used"
        if max_jobs == 0:
            return f"{said}; no job is allowed"
        return f"{said}; {_retry(recent[len(recent) - max_jobs][0], now_s)}"
    if max_gpu_hours is None:
        return None
    spent_hours, job_hours = sum(spent for _, spent in recent) / 3600, job_gpu_seconds / 3600
    if spent_hours + job_hours <= max_gpu_hours:
        return None
    said = (
        f"{spent_hours:.2f} of {max_gpu_hours:.2f} GPU-hours a day are used and the job needs {job_hours:.2f}"
    )
    for at_s, spent in recent:
        spent_hours -= spent / 3600
        if spent_hours + job_hours <= max_gpu_hours:
            return f"{said}; {_retry(at_s, now_s)}"
    return f"{said}; it never fits"


def _retry(oldest_s: float, now_s: float) -> str:
    return f"retry in {oldest_s + WINDOW_S - now_s:.0f} s"
