"""The life of jobs and nodes: `evolve(state, event)` for the one state that all services fold.

Total and idempotent: an event that is late, doubled, of an older generation or about something unknown
changes nothing. No clock, no chance: events carry their own times.
"""

from typing import assert_never

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.events import Event, PlanDecided
from shared.messages.fold_admission import accepted, amended, configured, quote_held, rejected
from shared.messages.fold_bounds import bound_ended, bounds_yield, scaled
from shared.messages.fold_curves import measured, profile_completed
from shared.messages.fold_jobs import (
    ended,
    scheduling_event,
    speaks_for,
    stopped_short,
    whole,
    with_job,
)
from shared.messages.fold_nodes import node_joined, node_lost
from shared.messages.fold_plan import allocated, placed
from shared.messages.fold_workers import (
    checkpoint_answered,
    generation_started,
    memory_exceeded,
    progressed,
    speed_seen,
    start_seen,
    worker_crashed,
    worker_lagged,
    workers_gone_after_the_end,
    workers_stopped,
)
from shared.messages.job_state import Phase
from shared.messages.pool_state import PoolState

FOLD = 9  # raise it when the same messages fold to another state: snapshots of the old fold are then not read


def evolve(state: PoolState, message: Event | PlanDecided | None, sequence: int) -> PoolState:
    """The state after the ledger's message at this sequence; one at or below state.sequence is old news.

    None stands for a message that nobody can read: it happened, and it says nothing.
    """
    if sequence <= state.sequence:
        return state
    if message is None:
        return changed(state, sequence=sequence)
    if not isinstance(message, PlanDecided):
        return changed(apply(state, message, sequence), sequence=sequence)
    for event in message.events:
        state = apply(state, event, sequence)
    if message.service == "allocator":
        state = changed(state, allocation_based_on=message.based_on)
    return changed(state, sequence=sequence, plan_sequence=sequence)


def apply(state: PoolState, event: Event, sequence: int) -> PoolState:
    """One event's effect, sequence numbers aside."""
    match event:
        case events.PoolConfigured():
            return configured(state, event, sequence)
        case events.ProfileRequested() | events.JobAdmitted():
            return accepted(state, event, sequence)
        case events.JobRejected():
            return rejected(state, event, sequence)
        case events.AllocationDecided():
            return allocated(state, event)
        case events.PlacementDecided():
            return placed(state, event)
        case events.ProfileCompleted():
            return profile_completed(state, event)
        case events.NodeJoined():
            return node_joined(state, event, sequence)
        case events.NodeLost():
            return node_lost(state, event, sequence)
        case events.QuoteHeld():
            return quote_held(state, event, sequence)
        case (
            events.CancelRefused()
            | events.QuoteRefused()
            | events.AmendRefused()
            | events.ScaleRefused()
            | events.CheckpointRefused()
            | events.CheckpointKept()
        ):
            return state
        case events.ThroughputMeasured():
            return measured(state, event, sequence)
        case _:
            return _of_a_job(state, event, sequence)


def _of_a_job(
    state: PoolState,
    event: events.JobCancelled
    | events.JobMeasured
    | events.JobAmended
    | events.JobScaled
    | events.BoundEnded
    | events.CheckpointRequested
    | events.CheckpointWritten
    | events.CheckpointFailed
    | events.RendezvousOpened
    | events.GenerationStarted
    | events.WorkersStopped
    | events.WorkerCrashed
    | events.WorkerLagged
    | events.MemoryExceeded
    | events.JobProgressed
    | events.JobFinished
    | events.JobFailed
    | events.JobAtRisk,
    sequence: int,
) -> PoolState:
    job = state.live_jobs.get(event.job_id)
    if job is None:
        return workers_gone_after_the_end(state, event)
    match event:
        case events.JobCancelled():
            return ended(state, job, Phase.CANCELLED, event.at_s, sequence, explanation=event.reason)
        case events.JobMeasured():
            return ended(state, job, Phase.MEASURED, event.at_s, sequence) if job.only_measured else state
        case events.JobAmended():
            return amended(state, job, event, sequence)
        case events.JobScaled():
            return scaled(state, job, event, sequence)
        case events.BoundEnded():
            return bound_ended(state, job, sequence)
        case events.JobFailed():
            if not speaks_for(job, event.generation):
                return state
            job = changed(job, traceback=event.traceback)
            return ended(state, job, Phase.FAILED, event.at_s, sequence, explanation=event.error)
        case events.JobFinished():
            if not speaks_for(job, event.generation) or job.phase is Phase.PROFILING:
                return state
            if job.submitted is not None and stopped_short(job, event):
                return state
            job = changed(job, iteration=event.iteration, metrics=event.metrics)
            return ended(state, job, Phase.FINISHED, event.at_s, sequence)
        case events.CheckpointRequested():
            return with_job(state, changed(job, checkpoint_request=sequence))
        case events.CheckpointWritten() | events.CheckpointFailed():
            return with_job(state, checkpoint_answered(job, event))
        case events.WorkersStopped():
            return with_job(state, workers_stopped(job, event))
        case events.WorkerCrashed():
            return worker_crashed(state, job, event, sequence)
        case events.WorkerLagged():
            return worker_lagged(state, job, event)
        case events.MemoryExceeded():
            return memory_exceeded(state, job, event, sequence)
        case events.RendezvousOpened():
            if not whole(job, event.generation) or job.rendezvous:
                return state
            return with_job(state, changed(job, rendezvous=event.address))
        case events.GenerationStarted():
            return with_job(start_seen(state, job, event), generation_started(state, job, event))
        case events.JobProgressed():
            after = progressed(job, event)
            return state if after is job else speed_seen(with_job(state, after), after, event, sequence)
        case events.JobAtRisk():
            if job.at_risk or job.phase is Phase.PROFILING or event.generation != job.generation:
                return state
            if job.at_risk_since_s is not None and event.at_s <= job.at_risk_since_s:
                return state  # told again, after its promise has changed
            job = changed(
                job,
                at_risk=True,
                at_risk_since_s=event.at_s,
                earliest_deadline_s=event.earliest_deadline_s,
            )
            return scheduling_event(with_job(bounds_yield(state, event), job), sequence)
        case _:
            assert_never(event)
