"""Survivors of a loss train on without the lost workers, and replacements join later (docs/adr/0025).

The survivors of a broken generation form a generation of their own. No worker has to start for it, so it trains as
soon as the rendezvous is complete. Until the share is complete again, placement counts all of the job's reserved GPUs
as its own.
"""

from collections.abc import Iterator
from dataclasses import replace

from elasticflow.services.placement.new_generation import new_generation
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.fold.jobs import alive, takes_jobs
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of


def shrunk_to_survivors(state: PoolState) -> Iterator[PlacedJob]:
    """For each job whose workers wait after a loss, a generation of the survivors on their GPUs."""
    broken = [job for job in state.live_jobs.values() if job.broken]
    for job in sorted(broken, key=lambda job: job.job_id):
        remaining = _remaining(job)
        if remaining and all(alive(state, gpu.node_id) for gpu in remaining):  # none is awaited
            num_added = len(remaining) if remaining[0] in job.added_gpus else 0
            yield replace(new_generation(job, remaining), num_added_gpus=num_added)


def _remaining(job: Job) -> tuple[GpuId, ...]:
    """GPUs of the job's share on which a worker holds its state, in rank order; GPUs of other types if there is none.

    Even parts would make the others wait for the slower type. No GPUs if the share is smaller, or if the job cannot
    run on so few: then it is placed like any other. A leaving worker's GPU is not among them, because it belongs to
    another job by now.
    """
    before = job.previous_generation
    if before is None or before.trains or job.has_outdated_spec:
        return ()
    surviving = set(before.surviving)
    own = tuple(gpu for gpu in job.own_gpus if gpu in surviving)
    gpus = own or tuple(gpu for gpu in job.added_gpus if gpu in surviving)
    return gpus if spec_of(job).gpu_range.least <= len(gpus) <= job.num_gpus else ()


def waits_to_shrink(job: Job) -> bool:
    """Whether workers will join as soon as the survivors train: placing the job before that gains nothing."""
    return job.shrinks_to_survivors and job.num_gpus > len(job.own_gpus)


def counted_gpus(state: PoolState, job: Job) -> tuple[GpuId, ...]:
    """The GPUs that count as the job's share and are on nodes that take jobs."""
    if not job.reserved_gpus and not job.broken and not state.draining:
        return job.own_gpus
    return tuple(gpu for gpu in job.reserved_gpus or job.own_gpus if takes_jobs(state, gpu.node_id))
