"""A requested checkpoint: which worker of this node must write it, and what came of it. Pure.

Rank 0 of the generation that trains writes it. If another generation trains before it is written, the request goes to
the new rank 0.
"""

from elasticflow.services.executor.decisions.local_events_and_actions import SendToWorker, WorkerId
from elasticflow.services.executor.decisions.worker_record import WorkerRecord
from elasticflow.shared.messages.events import CheckpointFailed, CheckpointWritten
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.to_worker import WriteCheckpoint
from elasticflow.shared.state.job import Job, Phase


def requested_checkpoint(
    job: Job, workers: tuple[WorkerRecord, ...], now_s: float
) -> list[SendToWorker | CheckpointWritten | CheckpointFailed]:
    """What is due for the job's newest checkpoint request, if it has no result yet."""
    if not job.checkpoint_request or job.phase is not Phase.ADMITTED:
        return []
    result = next((r for worker in workers if (r := _result(job, worker, now_s)) is not None), None)
    if result is not None:
        return [result]
    if job.training_generation is None:
        return []
    rank0_id = WorkerId(job.job_id, job.training_generation, 0)
    return [
        SendToWorker(worker=worker.id, message=WriteCheckpoint(request=job.checkpoint_request))
        for worker in workers
        if worker.id == rank0_id and _needs_request(worker, job.checkpoint_request)
    ]


def _needs_request(worker: WorkerRecord, request: int) -> bool:
    can_write = worker.runs and worker.trains and not worker.is_ending
    return can_write and worker.checkpoint_request < request


def _result(job: Job, worker: WorkerRecord, now_s: float) -> CheckpointWritten | CheckpointFailed | None:
    result = worker.checkpoint_result
    if result is None or result.request != job.checkpoint_request:
        return None
    if isinstance(result, from_worker.CheckpointFailed):
        return CheckpointFailed(
            job_id=job.job_id, request=result.request, explanation=result.reason, at_s=now_s
        )
    return CheckpointWritten(
        job_id=job.job_id,
        request=result.request,
        iteration=result.iteration,
        num_bytes=result.num_bytes,
        file=result.file,
        at_s=now_s,
    )
