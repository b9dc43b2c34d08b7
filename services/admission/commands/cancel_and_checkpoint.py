"""Commands that plan nothing: cancel a job, or checkpoint it now.

Source: Amoeba, section 3, Table 1 (checkpoint).
"""

from elasticflow.services.admission.rejection.text import no_such_job
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.commands import CancelJob, RequestCheckpoint
from elasticflow.shared.messages.events import (
    CancelRejected,
    CheckpointRejected,
    CheckpointRequested,
    CheckpointUpToDate,
    JobCancelled,
)
from elasticflow.shared.state.job import Phase


def cancel(session: AdmissionSession, command: CancelJob) -> AdmissionSession:
    """Cancel a live job. A job that is cancelled already gets no event: the host repeats the reply."""
    job, now_s = session.state.job(command.job_id), session.now_s
    if job is None or job.tenant != command.tenant:
        why = no_such_job(command.tenant)
        return session.with_event(
            CancelRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
        )
    if job.phase is Phase.CANCELLED:
        return session
    if not job.live:
        why = f"it has ended already: {job.phase.value}"
        return session.with_event(
            CancelRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
        )
    cancelled = JobCancelled(job_id=command.job_id, reason=command.reason, at_s=now_s)
    return session.with_event(cancelled).replanned()


def checkpoint(session: AdmissionSession, command: RequestCheckpoint) -> AdmissionSession:
    """Request a checkpoint where workers are ahead of the disk; otherwise the newest checkpoint is up to date."""
    return session.with_event(_checkpoint(session, command))


def _checkpoint(
    session: AdmissionSession, command: RequestCheckpoint
) -> CheckpointRequested | CheckpointUpToDate | CheckpointRejected:
    job, now_s = session.state.job(command.job_id), session.now_s
    if job is None or job.tenant != command.tenant:
        why = no_such_job(command.tenant)
        return CheckpointRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
    if job.phase in (Phase.PROFILING, Phase.PROFILED, Phase.REJECTED):
        why = "the job was not admitted: it has no state to checkpoint"
        return CheckpointRejected(job_id=command.job_id, tenant=command.tenant, explanation=why, at_s=now_s)
    if job.live and job.gpus:
        return CheckpointRequested(job_id=command.job_id, store=command.store, at_s=now_s)
    iteration = job.iteration if job.phase is Phase.FINISHED else job.checkpoint_iteration
    return CheckpointUpToDate(job_id=command.job_id, iteration=iteration, at_s=now_s)
