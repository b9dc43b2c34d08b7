"""How the state changes with what happens on this node: reports and ends of workers, and the executor's own actions.

Pure. `state.evolve` is the other half: the messages of the ledger.
"""

from dataclasses import replace
from typing import Any, assert_never, cast

from elasticflow.services.executor.decisions.local_events_and_actions import (
    Action,
    ArtifactsUploaded,
    BeginShutDown,
    ContactLost,
    ContactRestored,
    EndNoticed,
    GpusJudged,
    KillWorker,
    LocalEvent,
    NodeClaimed,
    SendToWorker,
    ShutDown,
    ShutDownRequested,
    StartWorker,
    StoreArtifacts,
    UsePaddingSlots,
    WorkerEnded,
    WorkerId,
    WorkerReported,
)
from elasticflow.services.executor.decisions.state import State, Switch, WorkerRecord, without_unneeded
from elasticflow.shared.messages.events import ArtifactsStored
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.to_worker import (
    JoinRendezvous,
    PeersLost,
    PrepareSwitch,
    StopAtBoundary,
    WriteCheckpoint,
)
from elasticflow.shared.state.job import Job

# --- When this node must store what a job has produced, and that it has --------------------------------
# Level-triggered: the ledger says what is due until it holds `ArtifactsStored`. An executor that was killed meanwhile
# begins again, and what it had uploaded already is found there by its digest.


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
    """The state with the newest upload of a job: ordered, or done. The end of an older one changes nothing."""
    known = state.uploads.get(upload.job_id)
    if isinstance(upload, ArtifactsUploaded) and (known is None or known.due != upload.due):
        return state
    return replace(state, uploads=state.uploads.set(upload.job_id, upload))


# --- local event fold ----------------------------------------------------------------------------------

_KEPT_WARNINGS = 8  # of one worker


def observe(state: State, local_event_or_action: Any, now_s: float) -> State:
    """The state after a local event, or after an action that the executor has just taken."""
    observed = cast(LocalEvent | Action, local_event_or_action)
    match observed:
        case WorkerReported():
            worker = state.workers.get(observed.worker)
            if worker is None:
                return state
            worker = replace(worker, last_lines=observed.last_lines or worker.last_lines)
            return _reported(state, worker, observed.message, now_s)
        case WorkerEnded():
            worker = state.workers.get(observed.worker)
            if worker is None:
                return state
            last_lines = observed.last_lines or worker.last_lines
            worker = replace(worker, ended=observed, ended_at_s=now_s, last_lines=last_lines)
            return without_unneeded(state.with_worker(worker), worker)
        case NodeClaimed():
            return replace(state, claim=observed)
        case ContactLost():
            explanation = f"ended because NATS was out of reach for {observed.silence_s:.1f} s"
            state = replace(state, cut_off=True)
            for worker in state.running:
                state = state.with_worker(replace(worker, explanation=explanation))
            return state
        case ContactRestored():
            return replace(state, cut_off=False)
        case EndNoticed():
            return replace(state, end_noticed=observed)
        case GpusJudged():
            return replace(state, gpus_judged=observed)
        case ShutDownRequested() | BeginShutDown():
            return replace(state, shutting_down=True)
        case StartWorker():
            return state.with_worker(_ordered(state, observed, now_s))
        case SendToWorker():
            return state.with_worker(_sent(state.workers[observed.worker], observed, now_s))
        case KillWorker():
            return state.with_worker(replace(state.workers[observed.worker], kill_requested=True))
        case StoreArtifacts() | ArtifactsUploaded():
            return with_upload(state, observed)
        case UsePaddingSlots():
            return replace(state, padding_slots=observed)
        case ShutDown():
            return state
        case _:
            assert_never(observed)


# --- actions --------------------------------------------------------------------------------------------


def _ordered(state: State, action: StartWorker, now_s: float) -> WorkerRecord:
    assignment = action.assignment
    return WorkerRecord(
        id=action.worker,
        gpu=GpuId(state.node_id, assignment.gpu_index),
        purpose=assignment.purpose,
        start_ordered_at_s=now_s,
        is_joining=assignment.plan.transfers_state,
        rendezvous=assignment.plan.rendezvous,
    )


def _sent(worker: WorkerRecord, action: SendToWorker, now_s: float) -> WorkerRecord:
    match action.message:
        case PrepareSwitch() as order:
            switch = Switch(order=order, ordered_at_s=now_s)
            return replace(worker, switch=switch, rendezvous=order.plan.rendezvous, port=None)
        case JoinRendezvous(address=address):
            return replace(worker, rendezvous=address)
        case PeersLost(generation=generation):
            return replace(worker, peers_lost_sent=generation)
        case WriteCheckpoint(request=request):
            return replace(worker, checkpoint_request=request)
        case StopAtBoundary():
            return replace(worker, stop_requested_at_s=now_s)


# --- reports of workers ---------------------------------------------------------------------------------


def _reported(state: State, worker: WorkerRecord, message: from_worker.FromWorker, now_s: float) -> State:
    match message:
        case from_worker.RendezvousListening(generation=generation, port=port):
            if generation == worker.newest_generation:
                worker = replace(worker, port=port)
        case from_worker.Started(iteration=iteration, resize=resize, lost_checkpoints=lost_checkpoints):
            from_checkpoint = worker.id.rank == 0 and resize is None  # or from nothing
            worker = replace(
                _begun(worker, iteration, resize, now_s),
                checkpoint_iteration=iteration if from_checkpoint else None,
                lost_checkpoints=lost_checkpoints,
            )
        case from_worker.Interrupted(iteration=iteration, micro_batch_size=micro_batch_size):
            worker = replace(
                worker,
                interrupted_at_s=now_s,
                exceeded_micro_batch_size=micro_batch_size,
                iteration=iteration,
                progressed_at_s=now_s,
            )
        case from_worker.Switched():
            return _switched(state, worker, message, now_s)
        case from_worker.Progressed(iteration=iteration, iterations_per_s=iterations_per_s, metrics=metrics):
            worker = replace(
                worker,
                iteration=iteration,
                iterations_per_s=iterations_per_s,
                metrics=metrics,
                progressed_at_s=now_s,
            )
        case from_worker.Lagged():
            worker = replace(worker, lagged=message, lagged_at_s=now_s)
        case from_worker.Warned():
            others = (other for other in worker.warnings if other != message)
            worker = replace(worker, warnings=(*others, message)[-_KEPT_WARNINGS:])
        case from_worker.Alive(iteration=iteration, seconds_since_progress=silence_s, phase=phase):
            worker = replace(worker, iteration=iteration, progressed_at_s=now_s - silence_s, phase=phase)
        case from_worker.CheckpointWritten(iteration=iteration, request=request):
            worker = replace(
                worker,
                checkpoint_iteration=max(iteration, worker.checkpoint_iteration or 0),
                checkpoint_result=message if request else worker.checkpoint_result,
            )
        case from_worker.CheckpointFailed():
            worker = replace(worker, checkpoint_result=message)
        case from_worker.Ending(reason=reason):
            worker = replace(worker, explanation=reason)
        case from_worker.Profiled() | from_worker.Finished() | from_worker.Failed():
            worker = replace(worker, outcome=worker.outcome or message)
        case _:
            assert_never(message)
    return state.with_worker(worker)


def _begun(worker: WorkerRecord, iteration: int, resize: ResizeTimeline | None, now_s: float) -> WorkerRecord:
    return replace(
        worker,
        trains=True,
        phase="",
        interrupted_at_s=None,
        exceeded_micro_batch_size=0,
        lagged=None,
        first_iteration=iteration,
        resize=resize,
        iteration=iteration,
        progressed_at_s=now_s,
    )


def _switched(state: State, worker: WorkerRecord, switched: from_worker.Switched, now_s: float) -> State:
    """The process is another worker from now on. A switch to a still newer generation stays in progress."""
    state = replace(state, workers=state.workers.delete(worker.id))
    is_complete = worker.newest_generation <= switched.generation
    worker = replace(
        _begun(worker, switched.iteration, switched.resize, now_s),
        id=WorkerId(worker.id.job_id, switched.generation, switched.rank),
        switch=None if is_complete else worker.switch,
        checkpoint_iteration=worker.checkpoint_iteration if switched.rank == 0 else None,
    )
    return state.with_worker(worker)
