"""How a job or its newest generation ended, by what its workers on this node said and did. Pure."""
# pyright: strict

import signal

from services.executor.model import State, Worker, counted_on, is_awaited, is_current, is_lost
from services.executor.notes import WorkerId
from shared.messages import from_worker
from shared.messages.events import JobFailed, JobFinished, MemoryExceeded, WorkerCrashed
from shared.messages.fold_jobs import stopped_short
from shared.messages.fold_workers import half_of, knows
from shared.messages.from_worker import ExitCode
from shared.messages.job_state import Job, Phase


def end_of_job(
    state: State, job: Job, workers: tuple[Worker, ...], now_s: float
) -> JobFinished | JobFailed | WorkerCrashed | MemoryExceeded | None:
    """The one fact that ends the job, or breaks its generation, if there is cause for one."""
    if not job.live:
        return None
    for worker in workers:
        if is_awaited(state, job, worker.id.generation):
            fact = _outcome(state, job, worker, now_s)
            if fact is not None:
                return fact
    for worker in workers:
        seat = _seat(state, job, worker)
        if seat is not None and _exceeds(job, worker):
            return _memory_exceeded(state, seat, worker, now_s)
    crashed = [w for w in workers if (at_s := crash_due_s(state, job, w)) is not None and at_s <= now_s]
    if not crashed:
        return None
    return _crash(state, job, min(crashed, key=_directness), now_s)


def _outcome(state: State, job: Job, worker: Worker, now_s: float) -> JobFinished | JobFailed | None:
    generation, outcome = worker.id.generation, worker.outcome
    if isinstance(outcome, from_worker.Finished) and job.phase is Phase.ADMITTED:
        finished = JobFinished(
            job_id=job.job_id,
            generation=generation,
            iteration=outcome.iteration,
            condition=outcome.condition,
            metrics=outcome.metrics,
            at_s=now_s,
        )
        return None if job.submitted is not None and stopped_short(job, finished) else finished
    error, traceback = "", ""
    if isinstance(outcome, from_worker.Failed):
        error, traceback = outcome.error, outcome.traceback
    elif (at_s := overdue_at_s(state, job, worker)) is not None and at_s <= now_s:
        limit_s = state.pool.config.detection.pre_run_s
        error = f"its pre-run on {len(job.gpus)} GPUs did not end within {limit_s:.0f} s"
    if not error:
        return None
    return JobFailed(job_id=job.job_id, generation=generation, error=error, traceback=traceback, at_s=now_s)


def _exceeds(job: Job, worker: Worker) -> bool:
    """Its micro-batches are too big for its memory, and the ledger does not know it yet."""
    return worker.exceeded > 0 and not knows(job, half_of(worker.exceeded))


def _memory_exceeded(state: State, seat: WorkerId, worker: Worker, now_s: float) -> MemoryExceeded:
    return MemoryExceeded(
        job_id=seat.job_id,
        generation=seat.generation,
        node_id=state.node_id,
        rank=seat.rank,
        micro_batch_size=worker.exceeded,
        at_s=now_s,
    )


def overdue_at_s(state: State, job: Job | None, worker: Worker) -> float | None:
    """When a pre-run that still goes on will have taken too long."""
    if job is None or worker.purpose != "profile" or not worker.runs:
        return None
    pending = is_current(job) and worker.id.generation == job.generation and worker.outcome is None
    return worker.asked_for_at_s + state.pool.config.detection.pre_run_s if pending else None


def crash_due_s(state: State, job: Job | None, worker: Worker) -> float | None:
    """When the end of this worker counts as a crash of its generation; None if it does not."""
    seat = None if job is None else _seat(state, job, worker)
    if job is None or seat is None or not is_current(job) or is_lost(state, job, worker):
        return None
    missed = counted_on(state, job, worker) is not None and not state.leaving
    if worker.end_was_asked and not missed:
        return None
    if worker.ended is None:
        return _silence_due_s(state, job, worker)
    if isinstance(worker.outcome, from_worker.Profiled):
        return None
    if worker.ended.exit_code not in (ExitCode.DONE, ExitCode.SUPERSEDED):
        return worker.ended_at_s
    leaves = worker.becomes is None and job.generation == worker.place.generation != worker.id.generation
    unexpected = (missed or worker.id.rank == 0) and not leaves
    if not unexpected:
        return None
    return worker.ended_at_s + state.pool.config.detection.word_s  # who asked elsewhere has said so by then


def _silence_due_s(state: State, job: Job, worker: Worker) -> float | None:
    """When a running worker is given up: it never comes to join the others, or lost a peer that nobody else misses."""
    if worker.interrupted_at_s is not None:
        waits_since_s = max(worker.interrupted_at_s, worker.change_told_at_s or 0.0)
        return waits_since_s + _patience_s(state, job, worker)
    joins = worker.joins and not worker.trains
    return worker.asked_for_at_s + state.pool.config.stall_timeout_s if joins else None


def _patience_s(state: State, job: Job, worker: Worker) -> float:
    """Of a survivor: with a loss that the ledger has not; or, once it is told with whom to go on, with their meeting,
    to which newcomers come when they have made their models."""
    config, before = state.pool.config, job.predecessor
    goes_over = worker.place.generation == job.generation != worker.id.generation
    if not goes_over or before is None:
        return config.detection.missed_s
    return config.detection.start_s if set(job.gpus) <= set(before.surviving) else config.stall_timeout_s


def _seat(state: State, job: Job, worker: Worker) -> WorkerId | None:
    """Where the worker is missed: in the predecessor, as the one on its GPU; in the newest generation; or where it went
    with all others and could not say so any more."""
    if (member := counted_on(state, job, worker)) is not None:
        return member
    if worker.id.generation == job.generation:
        return worker.id
    went_over = worker.becomes is not None and worker.becomes.generation == job.generation
    return worker.becomes if went_over else None


def _directness(worker: Worker) -> tuple[bool, int]:
    """Who lost a peer is a witness at most: the peer's own end explains more."""
    return (worker.ended is not None and worker.ended.exit_code == ExitCode.PEER_LOST, worker.id.rank)


def _crash(state: State, job: Job, worker: Worker, now_s: float) -> WorkerCrashed | JobFailed:
    """A new generation is due, unless one after another has crashed before it got anywhere."""
    seat = _seat(state, job, worker)
    assert seat is not None, worker.id
    explanation = f"rank {seat.rank} on {state.node_id} {_end_in_words(worker)}"
    if job.restarts >= state.pool.config.max_restarts:
        return JobFailed(
            job_id=job.job_id,
            generation=job.generation,
            error=f"crashed {job.restarts + 1} times in a row without a new checkpoint; last: {explanation}",
            at_s=now_s,
        )
    return WorkerCrashed(
        job_id=job.job_id,
        generation=seat.generation,
        node_id=state.node_id,
        rank=seat.rank,
        explanation=explanation,
        at_s=now_s,
    )


def _end_in_words(worker: Worker) -> str:
    ended = worker.ended
    if ended is None:
        return (
            "did not come to join those that train"
            if worker.interrupted_at_s is None
            else "lost a peer that nobody else misses"
        )
    if worker.explanation or ended.explanation:
        return worker.explanation or ended.explanation
    if ended.signal is not None:
        known = ended.signal in signal.valid_signals()
        return f"was ended by {signal.Signals(ended.signal).name if known else f'signal {ended.signal}'}"
    match ended.exit_code:
        case ExitCode.PEER_LOST:
            return "lost a peer"
        case ExitCode.OUT_OF_MEMORY:
            return "ran out of memory"
        case ExitCode.DEVICE_UNUSABLE:
            return "cannot use its GPU (its log says why)"
        case ExitCode.UNREADABLE:
            return "could not read what its executor said (its log says why)"
        case ExitCode.DONE | ExitCode.SUPERSEDED:
            return "ended though nobody asked"
        case code:
            return f"ended with exit code {code}"
