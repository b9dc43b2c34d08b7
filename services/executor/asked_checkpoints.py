"""A checkpoint that an operator asks for: whom to ask on this node, and what came of it. Part of the policy.

Rank 0 of the generation that trains writes it. Where that changes meanwhile, the next one is asked.
"""

from collections.abc import Iterable

from services.executor.model import Worker
from services.executor.notes import AskForCheckpoint, WorkerId
from shared.messages import from_worker
from shared.messages.events import CheckpointFailed, CheckpointWritten
from shared.messages.job_state import Job, Phase


def asked_checkpoint(
    job: Job, workers: Iterable[Worker], now_s: float
) -> list[AskForCheckpoint | CheckpointWritten | CheckpointFailed]:
    """What is due for the newest request that the ledger knows, and has no answer to."""
    if not job.checkpoint_request or job.phase is not Phase.ADMITTED:
        return []
    here = tuple(workers)
    answer = next((a for worker in here if (a := _answer(job, worker, now_s)) is not None), None)
    if answer is not None:
        return [answer]
    if job.training_generation is None:
        return []
    rank0_id = WorkerId(job.job_id, job.training_generation, 0)
    return [
        AskForCheckpoint(worker=worker.id, request=job.checkpoint_request)
        for worker in here
        if worker.id == rank0_id and _can_be_asked(worker, job.checkpoint_request)
    ]


def _can_be_asked(worker: Worker, request: int) -> bool:
    trains = worker.runs and worker.trains and not worker.end_was_asked
    return trains and worker.checkpoint_request < request


def _answer(job: Job, worker: Worker, now_s: float) -> CheckpointWritten | CheckpointFailed | None:
    said = worker.checkpoint_answer
    if said is None or said.request != job.checkpoint_request:
        return None
    if isinstance(said, from_worker.NotCheckpointed):
        return CheckpointFailed(job_id=job.job_id, request=said.request, explanation=said.reason, at_s=now_s)
    return CheckpointWritten(
        job_id=job.job_id,
        request=said.request,
        iteration=said.iteration,
        num_bytes=said.num_bytes,
        file=said.file,
        at_s=now_s,
    )
