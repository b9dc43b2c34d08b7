"""Survivors of a loss go on without who is gone, and take in replacements later (docs/adr/0025). Part of the policy.

What is left of a broken generation is a generation of its own: nobody has to start for it, so it trains as soon as its
workers have met. Until those come who complete it, placement counts the whole seat as the job's.
"""

from collections.abc import Iterator

from shared.messages.cluster import GpuId
from shared.messages.events import PlacedJob
from shared.messages.fold_jobs import alive
from shared.messages.job_state import Job
from shared.messages.pool_state import PoolState, spec_of


def regrouped(state: PoolState) -> Iterator[PlacedJob]:
    """For each job whose workers wait for what becomes of them, a generation of those who are left on its GPUs."""
    broken = [job for job in state.live_jobs.values() if job.broken]
    for job in sorted(broken, key=lambda job: job.job_id):
        if remaining := _remaining(job):
            yield PlacedJob(job_id=job.job_id, generation=job.generation + 1, gpus=remaining)


def _remaining(job: Job) -> tuple[GpuId, ...]:
    """GPUs of its present generation on which a worker has the state, in rank order. None if it is to have fewer, or
    cannot run on so few: then it is placed as any other. Whoever was leaving has given its GPU to others."""
    before = job.predecessor
    if before is None or before.trains or job.outdated:
        return ()
    surviving = set(before.surviving)
    gpus = tuple(gpu for gpu in job.gpus if gpu in surviving)
    return gpus if spec_of(job).gpu_range.least <= len(gpus) <= job.num_gpus else ()


def waits_to_regroup(job: Job) -> bool:
    """It will take in others as soon as it trains again: nothing is gained by placing it anew before."""
    return job.regroups and job.num_gpus > len(job.gpus)


def seat(state: PoolState, job: Job) -> tuple[GpuId, ...]:
    """The GPUs that count as its own and are there."""
    if not job.seat and not job.broken:
        return job.gpus
    return tuple(gpu for gpu in job.seat or job.gpus if alive(state, gpu.node_id))
