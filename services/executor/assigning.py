"""What a worker is told when it starts, from what the policy wants and what this node knows. Pure."""

from pathlib import Path

from services.executor.notes import StartWorker
from services.executor.settings import ExecutorSettings
from shared.messages.to_worker import Assignment


def assignment(action: StartWorker, settings: ExecutorSettings, data_dir: Path, code_path: str) -> Assignment:
    """code_path: where its training function lies on this machine."""
    job_id, generation, rank = action.worker
    return Assignment(
        job_id=job_id,
        generation=generation,
        rank=rank,
        world_size=action.world_size,
        spec=action.spec,
        purpose=action.purpose,
        checkpoint_dir=str(data_dir / "checkpoints" / job_id),
        code_path=code_path,
        device=settings.device,
        gpu_index=action.gpu_index,
        cpu_share=settings.cpu_share,
        advertise_host=settings.advertise_host,
        rendezvous=action.rendezvous,
        leased=True,
        detection=action.detection,
        checkpoint_iteration=action.checkpoint_iteration,
        meeting_size=action.meeting_size,
        micro_batch_size=action.micro_batch_size,
    )
