"""The next generation of a job on given GPUs, and how many virtual nodes each of them computes. Pure."""

from itertools import chain

from elasticflow.services.placement.allocated_mix import allocated_mix
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


def new_generation(job: Job, gpus: tuple[GpuId, ...]) -> PlacedJob:
    """Its virtual nodes are divided as evenly as possible, whatever the present generation has (docs/adr/0046).

    The job may have lost GPUs, or an amendment may have changed its batch, so present counts may not fit it any more.
    """
    return PlacedJob(job_id=job.job_id, generation=job.generation + 1, gpus=gpus)


def mixed_generation(state: PoolState, job: Job, own: tuple[GpuId, ...], added: tuple[GpuId, ...]) -> PlacedJob:
    """Its virtual nodes are divided as the allocation says (docs/adr/0049).

    own: the job's share. added: GPUs of other types, in the order of `allocated_mix`.
    """
    return PlacedJob(
        job_id=job.job_id,
        generation=job.generation + 1,
        gpus=(*own, *added),
        virtual_nodes_by_rank=tuple(chain.from_iterable(allocated_mix(state, job).values())),
        num_added_gpus=len(added),
    )
