"""The worker processes that this node must start, stop, kill, or ask for a checkpoint. Pure.

Compares what the ledger places here with what runs here. `crash_survivors` decides for workers that switch.
"""

from collections.abc import Iterator
from dataclasses import replace

from elasticflow.services.executor.decisions.crashes import generation_plan, is_hopeless, switch_orders
from elasticflow.services.executor.decisions.local_events_and_actions import (
    KillWorker,
    SendToWorker,
    StartWorker,
    WorkerId,
)
from elasticflow.services.executor.decisions.state import (
    State,
    WorkerRecord,
    can_train,
    is_quarantined,
)
from elasticflow.shared.messages.events import CheckpointFailed, CheckpointWritten
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    JoinRendezvous,
    StopAtBoundary,
    WriteCheckpoint,
)
from elasticflow.shared.state.fold.profiles import may_measure_virtual_nodes
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.nodes import waits_its_turn
from elasticflow.shared.state.pool import largest_level, spec_of

_LEAST_CHOICE = 8  # virtual nodes, also in a smaller pool: it may grow, and slow GPUs get fewer of them than others

# --- ends -----------------------------------------------------------------------------------------------


def ends(
    state: State, job: Job | None, workers: tuple[WorkerRecord, ...], now_s: float
) -> list[SendToWorker | KillWorker]:
    """Stop the workers that should not run at a step boundary if that saves work; else kill them."""
    hopeless = {worker.id for worker in workers if is_hopeless(state, job, worker, now_s)}
    outputs: list[SendToWorker | KillWorker] = [KillWorker(worker=worker_id) for worker_id in sorted(hopeless)]
    for generation in sorted({worker.id.generation for worker in workers if worker.runs}):
        group = [worker for worker in workers if worker.runs and worker.id.generation == generation]
        # A worker that has switched with all others to the newest generation is about to report it.
        if any(_should_run(state, job, wanted) for worker in group for wanted in worker.generations):
            continue
        alive = [worker for worker in group if not worker.kill_requested and worker.id not in hopeless]
        overdue = any((at_s := kill_due_s(state, w)) is not None and at_s <= now_s for w in group)
        if overdue or not _is_worth_a_stop(job, group):
            outputs += (KillWorker(worker=worker.id) for worker in alive)
        elif not all(worker.is_ending for worker in group):
            stop = StopAtBoundary(keeps_state=job is not None and job.live)
            outputs += (SendToWorker(worker=worker.id, message=stop) for worker in alive)
    return outputs


def _should_run(state: State, job: Job | None, generation: int) -> bool:
    """Workers of this generation should run here: it is the newest, or it holds the state of the job."""
    if job is None or not job.live or state.shutting_down:
        return False
    before = job.previous_generation
    if before is not None and generation == before.generation:
        return True
    return generation == job.generation and not job.broken


def _is_worth_a_stop(job: Job | None, group: list[WorkerRecord]) -> bool:
    """The workers have steps to save, also after the loss of a peer; or their job has ended, and its exit handlers are
    due."""
    is_over = job is not None and not job.live
    trained = (worker for worker in group if worker.purpose == "train")
    return job is not None and any(is_over or worker.trains or worker.is_joining for worker in trained)


def kill_due_s(state: State, worker: WorkerRecord) -> float | None:
    """When the grace of a worker that was sent a stop ends."""
    if not worker.runs or worker.kill_requested or worker.stop_requested_at_s is None:
        return None
    return worker.stop_requested_at_s + state.node_specification.stop_grace_s


# --- starts ---------------------------------------------------------------------------------------------


def starts(state: State, now_s: float) -> list[StartWorker | SendToWorker]:
    """Workers to start, workers to switch, and the address of the rendezvous for those that wait for it."""
    outputs: list[StartWorker | SendToWorker] = []
    occupied = {worker.gpu for worker in state.running}
    for job_id in sorted(state.job_ids):
        job = state.pool.live_jobs.get(job_id)
        if job is None or not can_train(job) or state.shutting_down or state.cut_off:
            continue
        outputs += switch_orders(state, job)
        turn_due_s = turn_s(state, job)
        has_its_turn = turn_due_s is None or turn_due_s <= now_s
        for worker_id, gpu in _due_here(state, job) if has_its_turn else ():
            if worker_id not in state.workers and gpu not in occupied:
                occupied.add(gpu)
                outputs.append(StartWorker(assignment=_assignment(state, job, worker_id, gpu), tenant=job.tenant))
        if job.rendezvous:
            join = JoinRendezvous(generation=job.generation, address=job.rendezvous)
            waiting = (w for w in state.workers_of(job_id) if _waits_for_address(job, w))
            outputs += (SendToWorker(worker=worker.id, message=join) for worker in waiting)
    return outputs


def _due_here(state: State, job: Job) -> Iterator[tuple[WorkerId, GpuId]]:
    """Workers of the newest generation that run on this node and are not there by a switch."""
    if not _may_start(state, job):
        return
    switching = () if job.previous_generation is None else job.previous_generation.surviving
    for rank, gpu in enumerate(job.gpus):
        if gpu.node_id == state.node_id and gpu not in switching:
            yield WorkerId(job.job_id, job.generation, rank), gpu


def _may_start(state: State, job: Job) -> bool:
    """The fence: no worker of an older generation runs on any node, unless it passes the state of the job on.

    A generation that has started has met in full and gets no further worker. A worker may not join workers that have
    an older spec.
    """
    if is_quarantined(state, job):
        return False
    if job.previous_generation is not None:
        return not job.has_outdated_spec and job.started_at_s is None
    older = any(w.runs and w.id.generation != job.generation for w in state.workers_of(job.job_id))
    return not job.stopping and not older and job.started_at_s is None


def turn_s(state: State, job: Job | None) -> float | None:
    """When workers start here at the latest that wait for another start (docs/adr/0096); None if none does."""
    if job is None or not can_train(job) or state.shutting_down or state.cut_off or not waits_its_turn(state.pool, job):
        return None
    occupied = {worker.gpu for worker in state.running}
    if all(worker_id in state.workers or gpu in occupied for worker_id, gpu in _due_here(state, job)):
        return None
    return job.placed_at_s + state.pool.config.timeouts_of(spec_of(job)).turn_s


def _assignment(state: State, job: Job, worker: WorkerId, gpu: GpuId) -> Assignment:
    """All but secrets and the paths of code, packages and data, which are known once these are on this node."""
    node = state.node_specification
    return Assignment(
        job_id=worker.job_id,
        plan=generation_plan(state, job, worker.rank),
        rank=worker.rank,
        spec=spec_of(job),
        purpose="profile" if job.phase is Phase.PROFILING else "train",
        checkpoint_dir=f"{node.data_dir}/checkpoints/{job.job_id}",
        device=node.device,
        gpu_index=gpu.gpu_index,
        shown_gpus=tuple(each.gpu_index for each in job.shown_gpus if each.node_id == state.node_id),
        cpu_share=node.cpu_share,
        advertise_host=node.advertise_host,
        checkpoint_iteration=job.checkpoint_iteration,
        job_identity=job.identity,
        deadline_s=job.deadline_s,
        memory_limit_bytes=node.memory_limit_bytes if node.device == "cpu" else 0,
        measures_step_times=len(state.pool.gpu_types) > 1,
        most_virtual_nodes=_most_virtual_nodes(state, job),
        timeouts=_timeouts(state, job),
    )


def _timeouts(state: State, job: Job) -> FailureTimeouts:
    """Of its workers: the checkpoint of one of them may have to come from a store (docs/adr/0120)."""
    config, spec = state.pool.config, spec_of(job)
    timeouts = config.timeouts_of(spec)
    is_copied = state.node_specification.copies_checkpoints and spec.entry != TORCHRUN
    if not is_copied or not job.checkpoint_iteration or job.previous_generation is not None:  # from memory to memory
        return timeouts
    return replace(timeouts, preparation_s=timeouts.preparation_s + config.prepare_timeout_s)


def _most_virtual_nodes(state: State, job: Job) -> int:
    """Up to how many a profiling run measures; 0: none.

    As many as GPUs of the pool, and some more, so that GPUs of other speeds may have unequal numbers. A run that
    crashed is repeated without, since the whole batch in one pass may be what ended its worker. A job that continues
    one with the default keeps that.
    """
    spec, most = spec_of(job), state.pool.config.most_virtual_nodes
    first = job.phase is Phase.PROFILING and len(job.gpus) == 1 and not job.restarts
    first &= spec.continues is None or job.num_virtual_nodes > 0
    if not first or not most or not may_measure_virtual_nodes(state.pool, spec.measured_key):
        return 0
    return min(most, max(largest_level(state.pool, spec), _LEAST_CHOICE))


def _waits_for_address(job: Job, worker: WorkerRecord) -> bool:
    is_in_rendezvous = worker.runs and worker.newest_generation == job.generation
    return is_in_rendezvous and worker.rendezvous_rank != 0 and not worker.rendezvous


# --- requested checkpoints ------------------------------------------------------------------------------


def requested_checkpoint(
    job: Job, workers: tuple[WorkerRecord, ...], node_id: str, now_s: float
) -> list[SendToWorker | CheckpointWritten | CheckpointFailed]:
    """The order, or the result, for the newest checkpoint request of the job.

    Rank 0 of the training generation writes it. If another generation trains first, its rank 0 gets the order.
    """
    if not job.checkpoint_request or job.phase is not Phase.ADMITTED:
        return []
    result = next((r for worker in workers if (r := _result(job, worker, node_id, now_s)) is not None), None)
    if result is not None:
        return [result]
    if job.training_generation is None:
        return []
    rank0_id = WorkerId(job.job_id, job.training_generation, 0)
    return [
        SendToWorker(
            worker=worker.id, message=WriteCheckpoint(request=job.checkpoint_request, with_model=job.stores_checkpoint)
        )
        for worker in workers
        if worker.id == rank0_id and _needs_request(worker, job.checkpoint_request)
    ]


def _needs_request(worker: WorkerRecord, request: int) -> bool:
    can_write = worker.runs and worker.trains and not worker.is_ending
    return can_write and worker.checkpoint_request < request


def _result(job: Job, worker: WorkerRecord, node_id: str, now_s: float) -> CheckpointWritten | CheckpointFailed | None:
    result = worker.checkpoint_result
    if result is None or result.request != job.checkpoint_request:
        return None
    if isinstance(result, from_worker.CheckpointFailed):
        return CheckpointFailed(
            job_id=job.job_id,
            request=result.request,
            explanation=result.reason,
            at_s=now_s,
            node_id=node_id,
        )
    return CheckpointWritten(
        job_id=job.job_id,
        request=result.request,
        iteration=result.iteration,
        num_bytes=result.num_bytes,
        file=result.file,
        at_s=now_s,
        node_id=node_id,
    )
