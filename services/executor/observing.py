"""What an executor sees of its own node: what workers say, how they end, what the shell was told. Part of the model.

Pure, as `model`; what is told of it to the monitor is here too.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never, cast

from services.executor.model import State, Worker, forgotten_if_over
from services.executor.notes import (
    Action,
    AskForCheckpoint,
    ChangeMembers,
    ContactLost,
    ContactRestored,
    Depart,
    Ended,
    KillWorker,
    KillWorkers,
    LeaveRequested,
    Note,
    Said,
    StartWorker,
    StopWorkers,
    TellPeersLost,
    TellRendezvous,
    WorkerId,
)
from shared.messages import events, from_worker
from shared.messages.resize_timeline import ResizeTimeline


def observe(state: State, note: Any, now_s: float) -> State:
    """Something that happened here, or that the shell was just told to do."""
    noted = cast(Note | Action, note)
    match noted:
        case Said():
            return _heard(state, noted, now_s)
        case Ended():
            worker = state.workers.get(noted.worker)
            if worker is None:
                return state
            worker = replace(worker, ended=noted, ended_at_s=now_s)
            return forgotten_if_over(_with_worker(state, worker), worker)
        case ContactLost():
            explanation = f"ended because NATS was out of reach for {noted.silence_s:.1f} s"
            cut_off = replace(state, cut_off=True)
            return _each(cut_off, (w.id for w in state.running), explanation=explanation)
        case ContactRestored():
            return replace(state, cut_off=False)
        case LeaveRequested():
            return replace(state, leaving=True)
        case StartWorker():
            return _with_worker(state, _asked_for(noted, now_s))
        case ChangeMembers():
            changes = {
                "change": noted,
                "change_told_at_s": now_s,
                "rendezvous": noted.rendezvous,
                "port": None,
            }
            return _each(state, (noted.worker,), **changes)
        case TellRendezvous():
            meeting = (noted.job_id, noted.generation)
            told = [w.id for w in state.workers.values() if w.runs and w.place[:2] == meeting]
            return _each(state, told, rendezvous=noted.address)
        case TellPeersLost():
            return _each(state, (noted.worker,), loss_told=noted.generation)
        case AskForCheckpoint():
            return _each(state, (noted.worker,), checkpoint_request=noted.request)
        case StopWorkers():
            return _each(state, _running_ids(state, noted), stop_asked_at_s=now_s)
        case KillWorker():
            return _each(state, (noted.worker,), kill_asked=True)
        case KillWorkers():
            return _each(state, _running_ids(state, noted), kill_asked=True)
        case Depart():
            return state
        case _:
            assert_never(noted)


def _asked_for(action: StartWorker, now_s: float) -> Worker:
    return Worker(
        id=action.worker,
        gpu_index=action.gpu_index,
        purpose=action.purpose,
        asked_for_at_s=now_s,
        joins=action.meeting_size > 0,
        rendezvous=action.rendezvous,
    )


def _heard(state: State, note: Said, now_s: float) -> State:
    worker = state.workers.get(note.worker)
    if worker is None:
        return state
    match note.message:
        case from_worker.RendezvousListening(generation=generation, port=port):
            if generation == worker.place.generation:
                worker = replace(worker, port=port)
        case from_worker.Started(iteration=iteration, resize=resize):
            from_checkpoint = worker.id.rank == 0 and resize is None  # or from nothing
            worker = replace(
                _begun(worker, iteration, resize, now_s),
                checkpoint_iteration=iteration if from_checkpoint else None,
            )
        case from_worker.Interrupted(iteration=iteration, micro_batch_size=exceeded):
            worker = replace(
                worker, interrupted_at_s=now_s, exceeded=exceeded, iteration=iteration, progressed_at_s=now_s
            )
        case from_worker.Switched():
            return _switched(state, worker, note.message, now_s)
        case from_worker.Progressed(iteration=iteration, iterations_per_s=iterations_per_s, metrics=metrics):
            worker = replace(
                worker,
                iteration=iteration,
                iterations_per_s=iterations_per_s,
                metrics=metrics,
                progressed_at_s=now_s,
            )
        case from_worker.Lagged():
            worker = replace(worker, lagged=note.message, lagged_at_s=now_s)
        case from_worker.Alive(iteration=iteration, seconds_since_progress=silence_s):
            worker = replace(worker, iteration=iteration, progressed_at_s=now_s - silence_s)
        case from_worker.Checkpointed(iteration=iteration, request=request):
            worker = replace(
                worker,
                checkpoint_iteration=max(iteration, worker.checkpoint_iteration or 0),
                checkpoint_answer=note.message if request else worker.checkpoint_answer,
            )
        case from_worker.NotCheckpointed():
            worker = replace(worker, checkpoint_answer=note.message)
        case from_worker.Profiled() | from_worker.Finished() | from_worker.Failed():
            worker = replace(worker, outcome=worker.outcome or note.message)
        case _:
            assert_never(note.message)
    return _with_worker(state, worker)


def _begun(worker: Worker, iteration: int, resize: ResizeTimeline | None, now_s: float) -> Worker:
    return replace(
        worker,
        trains=True,
        interrupted_at_s=None,
        exceeded=0,
        lagged=None,
        first_iteration=iteration,
        resize=resize,
        iteration=iteration,
        progressed_at_s=now_s,
    )


def _switched(state: State, worker: Worker, switched: from_worker.Switched, now_s: float) -> State:
    """The process is another worker from now on."""
    member = WorkerId(worker.id.job_id, switched.generation, switched.rank)
    state = replace(state, workers=state.workers.delete(worker.id))
    worker = replace(_begun(worker, switched.iteration, switched.resize, now_s), id=member)
    return _with_worker(state, worker if member.rank == 0 else replace(worker, checkpoint_iteration=None))


def _running_ids(state: State, action: StopWorkers | KillWorkers) -> tuple[WorkerId, ...]:
    generation = (action.job_id, action.generation)
    return tuple(w.id for w in state.workers.values() if w.runs and w.id[:2] == generation)


def _each(state: State, ids: Iterable[WorkerId], **changes: Any) -> State:
    for worker_id in ids:
        state = _with_worker(state, replace(state.workers[worker_id], **changes))
    return state


def _with_worker(state: State, worker: Worker) -> State:
    return replace(state, workers=state.workers.set(worker.id, worker))


# --- report ---------------------------------------------------------------------------------------------


def report(state: State, now_s: float) -> events.NodeReported:
    """The heartbeat: of pre-runs too, so that the monitor sees whether they move."""
    return events.NodeReported(
        node_id=state.node_id,
        incarnation=state.incarnation,
        workers=tuple(
            events.WorkerReport(
                job_id=worker.id.job_id,
                generation=worker.id.generation,
                rank=worker.id.rank,
                iteration=worker.iteration,
                iterations_per_s=worker.iterations_per_s,
                checkpoint_iteration=worker.checkpoint_iteration or 0,
                seconds_since_progress=max(0.0, now_s - worker.progressed_at_s),
                metrics=worker.metrics,
            )
            for worker in state.running
            if worker.trains
        ),
        at_s=now_s,
    )
