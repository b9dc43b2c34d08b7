"""Wishes to keep the state of a job now. Source: Amoeba, section 3, Table 1 (checkpoint)."""

from services.admission.refusals import no_such_job
from shared.messages.commands import CheckpointJob
from shared.messages.events import CheckpointKept, CheckpointRefused, CheckpointRequested
from shared.messages.job_state import Phase
from shared.messages.pool_state import PoolState


def checkpoint(
    state: PoolState, wish: CheckpointJob, now_s: float
) -> CheckpointRequested | CheckpointKept | CheckpointRefused:
    """Asked for where workers have more than the disk; else the newest has it all."""
    job = state.job(wish.job_id)
    if job is None or job.tenant != wish.tenant:
        why = no_such_job(wish.tenant)
        return CheckpointRefused(job_id=wish.job_id, explanation=why, at_s=now_s)
    if job.phase in (Phase.PROFILING, Phase.MEASURED, Phase.REJECTED):
        why = "it was not admitted: there is nothing to be kept"
        return CheckpointRefused(job_id=wish.job_id, explanation=why, at_s=now_s)
    if job.live and job.gpus:
        return CheckpointRequested(job_id=wish.job_id, at_s=now_s)
    iteration = job.iteration if job.phase is Phase.FINISHED else job.checkpoint_iteration
    return CheckpointKept(job_id=wish.job_id, iteration=iteration, at_s=now_s)
