"""The fold of what jobs have produced: which node must store it, and what is stored."""

from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


def with_artifacts_due(job: Job, node_id: str, sequence: int) -> Job:
    """The executor of this node must store the job's model and files. No effect without a node."""
    if not node_id:
        return job
    return fast_replace(job, artifacts=replace(job.artifacts, due=sequence, node_id=node_id))


def artifacts_stored(state: PoolState, event: events.ArtifactsStored, sequence: int) -> PoolState:
    """Only the node that must store them may say so, and once."""
    job = state.job(event.job_id)
    if job is None or (event.due, event.node_id) != (job.artifacts.due, job.artifacts.node_id):
        return state
    artifacts = replace(
        job.artifacts,
        due=0,
        node_id="",
        sequence=sequence,
        model_iteration=event.iteration if event.model is not None else None,
        num_bytes=event.num_bytes,
    )
    job = fast_replace(job, artifacts=artifacts)
    if job.live:
        return fast_replace(state, live_jobs=state.live_jobs.set(job.job_id, job))
    return fast_replace(state, ended_jobs=state.ended_jobs.set(job.job_id, job))
