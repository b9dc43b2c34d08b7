"""Why a generation of workers ended, and what remains of it after a crash."""

import signal
from dataclasses import replace

from elasticflow.services.executor.decisions.local_events_and_actions import SendToWorker, WorkerId
from elasticflow.services.executor.decisions.state import (
    State,
    WorkerRecord,
    can_train,
    gpu_types_by_rank,
    is_awaited,
    is_quarantined,
)
from elasticflow.shared.messages.event_summary import counted, gpus_counted
from elasticflow.shared.messages.events import JobFailed, JobFinished, MemoryExceeded, ProfilingFailed, WorkerCrashed
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.messages.worker_protocol.to_worker import GenerationPlan, PeersLost, PrepareSwitch
from elasticflow.shared.state.fold.jobs import is_outdated_finish, may_report_end
from elasticflow.shared.state.fold.workers import halved, has_micro_batches_of
from elasticflow.shared.state.gpu_types import as_recorded, failure_on_type
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import spec_of

# to notice a lost peer, if longer than `peer_loss_notice_s`; a collective inside a GPU never does
NOTICE_STEPS = 3


def surviving_workers(state: State, job: Job) -> list[WorkerRecord]:
    """Workers of this node that hold the state of the job in its previous generation, in rank order."""
    if job.previous_generation is None:
        return []
    holders = [worker for worker in state.workers_of(job.job_id) if worker.runs and worker.trains]
    return [worker for gpu in job.previous_generation.surviving for worker in holders if worker.gpu == gpu]


def is_counted_as_lost(job: Job | None, worker: WorkerRecord) -> bool:
    """Whether the job already continues without this worker, by the ledger."""
    if job is None or job.previous_generation is None:
        return False
    is_older = job.broken or worker.id.generation < job.generation
    return is_older and worker.gpu in job.previous_generation.lost


# --- how they continue -----------------------------------------------------------------------------------


def peers_lost(state: State, job: Job) -> list[SendToWorker]:
    """Inform each survivor once of a generation that has lost workers: the network may never report it."""
    before = job.previous_generation
    if before is None or before.trains:
        return []
    broken = job.generation if job.broken else job.generation - 1  # the newest that is
    return [
        SendToWorker(worker=worker.id, message=PeersLost(generation=broken))
        for worker in surviving_workers(state, job)
        if not worker.kill_requested and worker.peers_lost_sent < broken
    ]


def switch_orders(state: State, job: Job) -> list[SendToWorker]:
    """Order each worker of the previous generation once to switch to the newest, or to leave with that switch."""
    if job.has_outdated_spec:  # its workers have an older spec: they must stop
        return []
    gpus = rendezvous_gpus(job)
    orders: list[SendToWorker] = []
    for worker in surviving_workers(state, job):
        if worker.is_ending or worker.newest_generation >= job.generation:
            continue
        rendezvous_rank = gpus.index(worker.gpu)
        order = PrepareSwitch(plan=generation_plan(state, job, rendezvous_rank), rendezvous_rank=rendezvous_rank)
        orders.append(SendToWorker(worker=worker.id, message=order))
    return orders


def generation_plan(state: State, job: Job, rendezvous_rank: int) -> GenerationPlan:
    """The plan of the newest generation. Its rendezvous rank 0 listens, and so gets no address."""
    return GenerationPlan(
        generation=job.generation,
        world_size=len(job.gpus),
        rendezvous=job.rendezvous if rendezvous_rank else "",
        rendezvous_size=len(rendezvous_gpus(job)),
        micro_batch_size=job.micro_batch_size or 0,
        num_virtual_nodes=job.num_virtual_nodes,
        virtual_nodes_by_rank=job.virtual_nodes_by_rank,
        gpu_types_by_rank=gpu_types_by_rank(state, job),
    )


def rendezvous_gpus(job: Job) -> tuple[GpuId, ...]:
    """GPUs of all workers in the rendezvous of a switch, by rendezvous rank: the new ranks, then leaving workers."""
    before = job.previous_generation
    return () if before is None else (*job.gpus, *(gpu for gpu in before.surviving if gpu not in job.gpus))


# --- survivors that do not continue ---------------------------------------------------------------------


def is_hopeless(state: State, job: Job | None, worker: WorkerRecord, now_s: float) -> bool:
    """The worker cannot continue, although its generation can: it counts as lost, or noticed no loss in time."""
    due_s = unnoticed_due_s(state, job, worker)
    unaware = due_s is not None and due_s <= now_s
    return unaware or (worker.runs and not worker.kill_requested and is_counted_as_lost(job, worker))


def unnoticed_due_s(state: State, job: Job | None, worker: WorkerRecord) -> float | None:
    """When a survivor counts as lost because it still waits for a lost peer.

    It was sent a stop or a switch and has not reacted, although it had time for a few steps.
    """
    if not worker.runs or worker.kill_requested or job is None or not job.live:
        return None
    if worker.interrupted_at_s is not None or not worker.trains or worker.purpose != "train":
        return None
    before = job.previous_generation
    has_lost_peer = not before.trains if before is not None else job.broken
    sent_s = worker.stop_requested_at_s
    if sent_s is None and worker.switch is not None and worker.is_switching_to(job.generation):
        sent_s = worker.switch.ordered_at_s
    if not has_lost_peer or sent_s is None:
        return None
    timeouts = state.pool.config.timeouts_of(spec_of(job))
    step_s = 1.0 / worker.iterations_per_s if worker.iterations_per_s else timeouts.slowest_step_s
    notice_s = max(timeouts.peer_loss_notice_s, NOTICE_STEPS * step_s)
    # An evaluation is progress, and asks its peers for nothing. They wait twice as long as this for the rendezvous.
    latest_s = sent_s + max(notice_s, timeouts.rendezvous_timeout_s / 2)
    return min(max(sent_s, worker.progressed_at_s) + notice_s, latest_s)


def wait_ends_s(state: State, job: Job, worker: WorkerRecord) -> float | None:
    """When a running worker is given up: it never joins those that train, or no other worker confirms its lost peer.

    Once its generation trains, it has joined: its own report is late by the difference to rank 0's first step at most.
    """
    started_at_s = job.started_at_s or 0.0
    if worker.interrupted_at_s is not None:
        ordered_at_s = 0.0 if worker.switch is None else worker.switch.ordered_at_s
        return max(worker.interrupted_at_s, ordered_at_s, started_at_s) + _survivor_wait_s(state, job, worker)
    if worker.is_joining and not worker.trains:
        joining_timeout_s = state.pool.config.timeouts_of(spec_of(job)).joining_timeout_s
        return max(worker.start_ordered_at_s, started_at_s) + joining_timeout_s
    return None


def _survivor_wait_s(state: State, job: Job, worker: WorkerRecord) -> float:
    """How long a survivor waits for the ledger to confirm the loss.

    Once a switch is ordered, it waits for the rendezvous of all its workers instead. Joining workers come to the
    rendezvous only when they have built their models.
    """
    timeouts, before = state.pool.config.timeouts_of(spec_of(job)), job.previous_generation
    if not worker.is_switching_to(job.generation):
        return timeouts.loss_confirmation_s
    is_joined = before is not None and not set(job.gpus) <= set(before.surviving)
    return timeouts.joining_timeout_s if is_joined else timeouts.rendezvous_timeout_s


# --- exit classification -------------------------------------------------------------------------------
# What the end of a worker, or of executors, means for a job: finished, failed, out of memory, or crashed. Pure.


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
        error = f"its profiling run on {gpus_counted(len(job.gpus))} did not end within {limit_s:.0f} s"
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
    nodes, prepared = (", ".join(each) for each in (job.nodes_lost_at_start, job.nodes_lost_in_preparation))
    crashes = job.restarts + len(job.nodes_lost_in_preparation)
    last = f"nodes were lost that prepared it ({prepared})" if prepared else "its start ended its executors"
    cause = (
        f"each of its last {len(job.nodes_lost_at_start)} starts lost a node ({nodes}), so no other node starts it; "
        "see the log of the executors there"
        if len(job.nodes_lost_at_start) >= state.pool.config.max_nodes_lost_at_start
        else f"crashed {counted(crashes, 'time')} in a row without a new checkpoint; last: {last}; see their logs"
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
        error = f"crashed {counted(job.restarts + 1, 'time')} in a row without a new checkpoint; last: {explanation}"
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


def _signal_name(number: int) -> str:
    """Signals of real time have none, and users' code may end its process with any."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _explanation(worker: WorkerRecord) -> str:
    ended = worker.ended
    if ended is None:
        if worker.interrupted_at_s is None:
            return "did not join the workers that train"
        return "reported a peer loss that no other worker confirmed"
    if worker.explanation or ended.explanation:
        return worker.explanation or ended.explanation
    if ended.signal is not None:
        return f"was ended by {_signal_name(ended.signal)}"
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
