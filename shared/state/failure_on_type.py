"""What a failure means for a job that is measured on one GPU type after another. Pure."""
# pyright: strict

from elasticflow.shared.messages.events import JobFailed, ProfilingFailed
from elasticflow.shared.state.gpu_types import possible_types, submitted_spec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState


def failure_on_type(state: PoolState, job: Job, gpu_type: str, failed: JobFailed) -> JobFailed | ProfilingFailed:
    """The failure of the job; or only of its profiling run on this recorded type, if another type is left for it."""
    possible = possible_types(state, submitted_spec(job))
    if job.phase is not Phase.PROFILING or not any(each != gpu_type for each in possible):
        return failed
    return ProfilingFailed(
        job_id=failed.job_id,
        generation=failed.generation,
        gpu_type=gpu_type,
        error=failed.error,
        node_id=failed.node_id,
        incarnation=failed.incarnation,
        progressed_at_s=failed.progressed_at_s,
        at_s=failed.at_s,
    )
