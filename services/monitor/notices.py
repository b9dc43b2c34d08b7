"""What the webhook tells of a job: that it ended, is at risk, or that its promise is broken. Pure."""
# pyright: strict

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from elasticflow.shared.state import expected_finish
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.promise import Promise, promise_of

Happened = Literal["finished", "failed", "cancelled", "at risk", "promise broken"]

_ENDS: Mapping[Phase, Happened] = {
    Phase.FINISHED: "finished",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing that happened to a job. id: the same whenever it is told again.

    margin_s: from the end, or the expected end, to the deadline; negative if late; None if either is unknown.
    """

    id: str
    job_id: str
    tenant: str
    what: Happened
    text: str
    deadline_s: float | None
    margin_s: float | None
    at_s: float


def notices(state: PoolState, *, after_s: float, now_s: float) -> tuple[Notice, ...]:
    """What happened after after_s, up to now_s, in the order of time."""
    jobs = (*state.live_jobs.values(), *state.ended_jobs.values())
    found = [notice for job in jobs for notice in _of_a_job(job, now_s) if after_s < notice.at_s <= now_s]
    return tuple(sorted(found, key=lambda notice: (notice.at_s, notice.id)))


def _of_a_job(job: Job, now_s: float) -> Iterator[Notice]:
    if job.at_risk and job.at_risk_since_s is not None:
        yield _notice(job, "at risk", job.at_risk_since_s, now_s)
    if promise_of(job, now_s) is Promise.BROKEN and job.deadline_s is not None:
        yield _notice(job, "promise broken", job.deadline_s, now_s)
    if job.phase in _ENDS and job.ended_at_s is not None and not job.profile_only:
        yield _notice(job, _ENDS[job.phase], job.ended_at_s, now_s)


def _notice(job: Job, what: Happened, at_s: float, now_s: float) -> Notice:
    margin_s = expected_finish.margin_s(job, now_s)
    return Notice(
        id=f"{job.job_id}/{what}/{at_s:.3f}",
        job_id=job.job_id,
        tenant=job.tenant,
        what=what,
        text=_text(job, what, margin_s),
        deadline_s=job.deadline_s,
        margin_s=margin_s,
        at_s=at_s,
    )


def _text(job: Job, what: Happened, margin_s: float | None) -> str:
    """As "j1 finished, 20 s before its deadline"."""
    if what == "promise broken":
        return f"{job.job_id} had not finished at its deadline"
    side = ""
    if margin_s is not None:
        side = f"{abs(margin_s):.0f} s {'before' if margin_s >= 0 else 'after'} its deadline"
    if what == "at risk":
        return f"{job.job_id} is at risk of missing its deadline" + (f": it would finish {side}" if side else "")
    reason = f": {job.explanation}" if job.explanation else ""
    return f"{job.job_id} {what}{f', {side}' if side and what == 'finished' else ''}{reason}"
