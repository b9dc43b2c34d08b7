"""Wishes to stop a job."""

from services.admission.refusals import no_such_job
from shared.messages.commands import CancelJob
from shared.messages.events import CancelRefused, JobCancelled
from shared.messages.job_state import Phase
from shared.messages.pool_state import PoolState


def cancel(state: PoolState, wish: CancelJob, now_s: float) -> JobCancelled | CancelRefused | None:
    """None if it is cancelled already: the host repeats the answer."""
    job = state.job(wish.job_id)
    if job is None or job.tenant != wish.tenant:
        why = no_such_job(wish.tenant)
        return CancelRefused(job_id=wish.job_id, explanation=why, at_s=now_s)
    if job.phase is Phase.CANCELLED:
        return None
    if not job.live:
        why = f"it has ended already: {job.phase.value}"
        return CancelRefused(job_id=wish.job_id, explanation=why, at_s=now_s)
    return JobCancelled(job_id=wish.job_id, reason=wish.reason, at_s=now_s)
