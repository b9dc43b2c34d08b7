"""Jobs whose share is on another type leave it, before other jobs get these GPUs.

A profiling run continues on another type, or its job is admitted on another one than the last that was measured.
GPUs of other types that joined a job are no part of its share.
"""

from collections.abc import Iterator

from elasticflow.services.placement.new_generation import new_generation
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.state.gpu_types import as_recorded
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of


def without_other_types(state: PoolState) -> Iterator[PlacedJob]:
    """For each job with a share of another type, a generation without GPUs."""
    if len(state.gpu_types) > 1:
        for _, job in sorted(state.live_jobs.items()):
            if _is_on_another_type(state, job):
                yield new_generation(job, ())


def _is_on_another_type(state: PoolState, job: Job) -> bool:
    nodes = (state.nodes.get(gpu.node_id) for gpu in job.own_gpus)
    return any(node is not None and as_recorded(state, node.gpu_type) != spec_of(job).gpu_type for node in nodes)
