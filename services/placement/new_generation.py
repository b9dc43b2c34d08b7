"""The next generation of a job on given GPUs, and how many virtual nodes each of them computes. Pure."""

from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.job import Job


def new_generation(job: Job, gpus: tuple[GpuId, ...]) -> PlacedJob:
    """Its virtual nodes are divided as evenly as possible, whatever the present generation has (docs/adr/0046).

    The job may have lost GPUs, or an amendment may have changed its batch, so present counts may not fit it any more.
    """
    return PlacedJob(job_id=job.job_id, generation=job.generation + 1, gpus=gpus)
