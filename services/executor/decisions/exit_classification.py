"""What the end of a worker, or of executors, means for a job: finished, failed, out of memory, or crashed. Pure."""

import signal
from dataclasses import replace

from elasticflow.services.executor.decisions.crash_survivors import is_counted_as_lost, wait_ends_s
from elasticflow.services.executor.decisions.local_events_and_actions import WorkerId
from elasticflow.services.executor.decisions.state import State, can_train, is_awaited, is_quarantined
from elasticflow.services.executor.decisions.worker_record import WorkerRecord
from elasticflow.shared.messages.events import JobFailed, JobFinished, MemoryExceeded, ProfilingFailed, WorkerCrashed
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.state.failure_on_type import failure_on_type
from elasticflow.shared.state.fold.jobs import is_outdated_finish, may_report_end
from elasticflow.shared.state.fold.workers import halved, has_micro_batches_of
from elasticflow.shared.state.gpu_types import as_recorded
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import spec_of


def end_of_job(
    state: State, job: Job, workers: tuple[WorkerRecord, ...], now_s: float
) -> JobFinished | JobFailed | ProfilingFailed | WorkerCrashed | MemoryExceeded | None:
    """The one event that ends the job or breaks its generation, if there is cause for it on this node."""
    if not job.live:
        return None
    if is_quarantined(state, job):
        return _quarantined(state, job, now_s) if any(gpu.node_id == state.node_id for gpu in job.gpus) else None
    for worker in workers:
        if is_awaited(state, job, worker.id.generation) and may_report_end(job, worker.id.generation):
            event = _outcome(state, job, worker, now_s)
            if event is not None:
                return event
    for worker in workers:
        worker_id = worker.ledger_id(job)
        if worker_id is not None and _exceeds_memory(job, worker):
            return _memory_exceeded(state, worker_id, worker, now_s)
    crashed = [w for w in workers if (at_s := crash_due_s(state, job, w)) is not None and at_s <= now_s]
    return _crash(state, job, min(crashed, key=_directness), now_s) if crashed else None


# --- finished, failed -----------------------------------------------------------------------------------


def _outcome(
    state: State, job: Job, worker: WorkerRecord, now_s: float
) -> JobFinished | JobFailed | ProfilingFailed | None:
    outcome = worker.outcome
    if isinstance(outcome, from_worker.Finished) and job.phase is Phase.ADMITTED:
        finished = JobFinished(
            job_id=job.job_id,
            generation=worker.id.generation,
            iteration=outcome.iteration,
            condition=outcome.condition,
            metrics=outcome.metrics,
            at_s=now_s,
            node_id=state.node_id,
        )
        return None if job.submitted_spec is not None and is_outdated_finish(job, finished) else finished
    if isinstance(outcome, from_worker.Failed):
        return _failed(state, job, outcome, now_s, worker)
    if (at_s := overdue_at_s(state, job, worker)) is not None and at_s <= now_s:
        limit_s = _profiling_limit_s(state, job)
        error = f"its profiling run on {len(job.gpus)} GPUs did not end within {limit_s:.0f} s"
        return _failed(state, job, from_worker.Failed(error=error), now_s, worker)
    return None


def _failed(
    state: State, job: Job, said: from_worker.Failed, now_s: float, worker: WorkerRecord | None = None
) -> JobFailed | ProfilingFailed:
    """worker: the one that failed, of the generation that it was in."""
    trained = worker is not None and worker.purpose == "train"
    failed = JobFailed(
        job_id=job.job_id,
        generation=job.generation if worker is None else worker.id.generation,
        error=said.error,
        traceback=said.traceback,
        whole_traceback=said.whole_traceback,
        last_lines="" if worker is None else worker.last_lines,
        iteration=worker.iteration if worker is not None and trained else None,
        node_id=state.node_id,
        incarnation=state.incarnation,
        at_s=now_s,
    )
    return failure_on_type(state.pool, job, as_recorded(state.pool, state.node_specification.gpu_type), failed)


def overdue_at_s(state: State, job: Job | None, worker: WorkerRecord) -> float | None:
    """When a profiling run that has not ended times out."""
    if job is None or worker.purpose != "profile" or not worker.runs:
        return None
    pending = can_train(job) and worker.id.generation == job.generation and worker.outcome is None
    return worker.start_ordered_at_s + _profiling_limit_s(state, job) if pending else None


def _profiling_limit_s(state: State, job: Job) -> float:
    timeouts = state.pool.config.timeouts_of(spec_of(job))
    return timeouts.profiling_timeout_s + timeouts.preparation_s


def _quarantined(state: State, job: Job, now_s: float) -> JobFailed | ProfilingFailed:
    nodes = ", ".join(job.nodes_lost_at_start)
    cause = (
        f"each of its last {len(job.nodes_lost_at_start)} starts lost a node ({nodes}), so no other node starts it; "
        "see the log of the executors there"
        if nodes
        else f"crashed {job.restarts} times in a row without a new checkpoint; last: its start ended its executors; "
        "see their logs"
    )
    return _failed(state, job, from_worker.Failed(error=f"{cause}, then submit it again"), now_s)


# --- out of memory --------------------------------------------------------------------------------------


def _exceeds_memory(job: Job, worker: WorkerRecord) -> bool:
    """A micro-batch exceeded the worker's memory, and the ledger has not yet halved it."""
    size = worker.exceeded_micro_batch_size
    return size > 0 and not has_micro_batches_of(job, halved(size))


def _memory_exceeded(state: State, worker_id: WorkerId, worker: WorkerRecord, now_s: float) -> MemoryExceeded:
    return MemoryExceeded(
        job_id=worker_id.job_id,
        generation=worker_id.generation,
        node_id=state.node_id,
        rank=worker_id.rank,
        micro_batch_size=worker.exceeded_micro_batch_size,
        at_s=now_s,
    )


# --- crashed --------------------------------------------------------------------------------------------


def crash_due_s(state: State, job: Job | None, worker: WorkerRecord) -> float | None:
    """When the end of this worker, or its silence, counts as a crash of its generation; None if it does not."""
    if job is None or worker.ledger_id(job) is None or not can_train(job) or is_counted_as_lost(job, worker):
        return None
    survivor = worker.previous_generation_id(job) is not None and not state.shutting_down
    if worker.is_ending and not survivor:
        return None
    if worker.ended is None:
        return wait_ends_s(state, job, worker)
    if isinstance(worker.outcome, from_worker.Profiled):
        return None
    if worker.ended.exit_code not in (ExitCode.DONE, ExitCode.SUPERSEDED):
        return worker.ended_at_s
    leaves = worker.is_leaving and worker.is_switching_to(job.generation)
    if leaves or not (survivor or worker.id.rank == 0):
        return None
    # Another node may have stopped it: by then that node's event is folded here.
    return worker.ended_at_s + state.pool.config.timeouts.propagation_s


def _directness(worker: WorkerRecord) -> tuple[bool, int]:
    """A worker that lost a peer comes last: the end of the peer explains more."""
    return (worker.ended is not None and worker.ended.exit_code == ExitCode.PEER_LOST, worker.id.rank)


def _crash(state: State, job: Job, worker: WorkerRecord, now_s: float) -> WorkerCrashed | JobFailed | ProfilingFailed:
    """A new generation is due, unless too many in a row have crashed without progress."""
    worker_id = worker.ledger_id(job)
    assert worker_id is not None, worker.id
    explanation = f"rank {worker_id.rank} on {state.node_id} {_explanation(worker)}"
    if job.restarts >= state.pool.config.max_restarts:
        error = f"crashed {job.restarts + 1} times in a row without a new checkpoint; last: {explanation}"
        failed = _failed(state, job, from_worker.Failed(error=error), now_s, worker)
        return replace(failed, generation=job.generation)
    return WorkerCrashed(
        job_id=job.job_id,
        generation=worker_id.generation,
        node_id=state.node_id,
        rank=worker_id.rank,
        explanation=explanation,
        last_lines=worker.last_lines,
        at_s=now_s,
    )


def _explanation(worker: WorkerRecord) -> str:
    ended = worker.ended
    if ended is None:
        if worker.interrupted_at_s is None:
            return "did not join the workers that train"
        return "reported a peer loss that no other worker confirmed"
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
            return "could not read a message of its executor (its log says why)"
        case ExitCode.DONE | ExitCode.SUPERSEDED:
            return "ended without a request to stop"
        case code:
            return f"ended with exit code {code}"
