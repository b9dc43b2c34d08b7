"""When this node must store what a job has produced, and that it has. Pure.

Level-triggered: the ledger says what is due until it holds `ArtifactsStored`. An executor that was killed meanwhile
begins again, and what it had uploaded already is found there by its digest.
"""

from dataclasses import replace

from elasticflow.services.executor.decisions.local_events_and_actions import ArtifactsUploaded, StoreArtifacts
from elasticflow.services.executor.decisions.state import State
from elasticflow.shared.messages.events import ArtifactsStored
from elasticflow.shared.state.job import Job


def artifacts(state: State, job: Job, now_s: float) -> list[StoreArtifacts | ArtifactsStored]:
    """The order to store them, or the event that says so."""
    due = job.artifacts.due
    if not due or not must_store(state, job):
        return []
    is_still_writing = job.stopping or any(worker.runs for worker in state.workers_of(job.job_id))
    if not job.live and is_still_writing:
        return []
    known = state.uploads.get(job.job_id)
    if known is None or known.due != due:
        order = StoreArtifacts(
            job_id=job.job_id,
            tenant=job.tenant,
            identity=job.identity,
            generation=job.generation,
            due=due,
            max_bytes=state.pool.config.max_artifact_bytes,
        )
        return [order]
    if isinstance(known, StoreArtifacts):
        return []
    stored = ArtifactsStored(
        job_id=job.job_id,
        due=due,
        node_id=state.node_id,
        iteration=known.iteration,
        model=known.model,
        files=known.files,
        outputs=known.outputs,
        unstored=known.unstored,
        num_unstored=known.num_unstored,
        uri=known.uri,
        at_s=now_s,
    )
    return [stored]


def must_store(state: State, job: Job) -> bool:
    """Whether the ledger waits for this node to store what the job has produced."""
    return state.node_specification.stores_artifacts and job.artifacts.node_id == state.node_id


def with_upload(state: State, upload: StoreArtifacts | ArtifactsUploaded) -> State:
    """With the newest upload of a job: ordered, or done. The end of an older one changes nothing."""
    known = state.uploads.get(upload.job_id)
    if isinstance(upload, ArtifactsUploaded) and (known is None or known.due != upload.due):
        return state
    return replace(state, uploads=state.uploads.set(upload.job_id, upload))
