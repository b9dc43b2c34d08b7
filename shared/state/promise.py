"""What has become of a job's promise at any time. Every table, page, report, notice and metric asks here. Pure."""

# pyright: strict

from enum import StrEnum

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Job, Phase


class Promise(StrEnum):
    """The state of a promise, as all screens write it. The last four are final, unless a live job is amended."""

    NONE = "none"  # best-effort, soft, not admitted, or of a profile only
    PROMISED = "promised"
    AT_RISK = "at risk"  # the monitor has found that the job may miss its deadline
    KEPT = "kept"
    BROKEN = "broken"  # its deadline passed before its end, whatever the end was
    FAILED = "failed"  # before its deadline
    CANCELLED = "cancelled"  # before its deadline


LIVE = (Promise.PROMISED, Promise.AT_RISK)


def has_promise(job: Job) -> bool:
    """Whether admission promised its deadline, however it ended since."""
    is_slo = job.spec is not None and job.spec.job_class is JobClass.SLO
    return is_slo and job.deadline_s is not None and job.admitted_at_s is not None


def promise_of(job: Job, now_s: float) -> Promise:
    """The state of its promise. It is BROKEN from the moment that its deadline passes without its end."""
    if not has_promise(job) or job.deadline_s is None:
        return Promise.NONE
    if job.deadline_s < (now_s if job.ended_at_s is None else job.ended_at_s):
        return Promise.BROKEN
    match job.phase:
        case Phase.FINISHED:
            return Promise.KEPT
        case Phase.FAILED:
            return Promise.FAILED
        case Phase.CANCELLED:
            return Promise.CANCELLED
        case _:
            return Promise.AT_RISK if job.at_risk else Promise.PROMISED


def settled_at_s(job: Job, now_s: float) -> float | None:
    """When the state of its promise became final: at its end or at its deadline; None while it is live, or without
    one."""
    match promise_of(job, now_s):
        case Promise.NONE | Promise.PROMISED | Promise.AT_RISK:
            return None
        case Promise.BROKEN:
            return job.deadline_s
        case _:
            return job.ended_at_s
