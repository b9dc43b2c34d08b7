"""The executor's policy: compare what the ledger places on this node with what runs, and act on the difference. Pure.

Level-triggered: it can begin from any state. An event is emitted until the ledger holds it, hence once. An action is
taken for as long as the processes differ from what they should be.
"""

import math
from dataclasses import replace
from functools import partial

from elasticflow.services.executor.decisions.crashes import (
    crash_due_s,
    end_of_job,
    overdue_at_s,
    peers_lost,
    unnoticed_due_s,
)
from elasticflow.services.executor.decisions.local_event_fold import artifacts, observe
from elasticflow.services.executor.decisions.local_events_and_actions import (
    NO_PADDING_SLOTS,
    Action,
    BeginShutDown,
    KillWorker,
    ShutDown,
    UsePaddingSlots,
    WorkerId,
)
from elasticflow.services.executor.decisions.reconciler import ends, kill_due_s, requested_checkpoint, starts, turn_s
from elasticflow.services.executor.decisions.state import (
    NodeSpecification,
    PoolMembership,
    State,
    can_train,
    evolve,
    start,
)
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import (
    GenerationStarted,
    GpuFailing,
    JobEvent,
    JobWarned,
    NodeEndNoticed,
    NodeEvent,
    NodeJoined,
    NodeLost,
    RendezvousOpened,
    ThroughputMeasured,
    WorkerLagged,
    WorkersStopped,
)
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.worker_protocol import from_worker
from elasticflow.shared.state.fold.nodes import is_new_failure
from elasticflow.shared.state.fold.workers import is_new_phase, is_new_slow_gpu, is_new_warning
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import CARRIES_A_JOB, spec_of

# --- Which GPUs of this node may execute tasks of padding loads now, and which loads -------------------
# A GPU may while it is idle by the ledger and carries no worker here. The executor acts on each difference: a
# placement that names the GPU takes it from its runner without another message.


def padding_slots(state: State) -> UsePaddingSlots:
    """What padding loads may use. Nothing outside the pool, without contact, or while the executor shuts down."""
    if state.membership is not PoolMembership.MEMBER or state.cut_off or state.shutting_down:
        return NO_PADDING_SLOTS
    node = state.node_specification
    live = (load for _, load in sorted(state.pool.loads.items()) if load.live)
    loads = tuple(load for load in live if load.spec.fits(node.gpu_type, node.gpu_memory_bytes))
    if not loads:
        return NO_PADDING_SLOTS
    used = {worker.gpu.gpu_index for worker in state.running}
    since_s_G = state.pool.idle_since_s.get(state.node_id, ())
    idle = (gpu for gpu, since_s in enumerate(since_s_G) if since_s < CARRIES_A_JOB and gpu not in used)
    return UsePaddingSlots(
        gpus=tuple(idle),
        loads=loads,
        weights=state.pool.config.padding_weights,
    )


# --- policy --------------------------------------------------------------------------------------------

Output = JobEvent | NodeEvent | Action


def executor_policy(node_specification: NodeSpecification) -> Policy[State]:
    """The policy of the executor of one node."""
    return Policy(
        service="executor",
        start=partial(start, node_specification=node_specification),
        pool=lambda state: state.pool,
        evolve=evolve,
        observe=observe,
        decide=decide,
        wake_at_s=wake_at_s,
    )


def decide(state: State, commands: tuple[Command, ...], now_s: float) -> tuple[Output, ...]:
    """Events that the ledger does not hold yet, and actions on the processes of this node.

    At its end the node shuts down as if its operator had asked for it; until then its jobs have moved.
    """
    if now_s >= state.leaves_at_s and not state.shutting_down:
        return (BeginShutDown(), *decide(replace(state, shutting_down=True), commands, now_s))
    slots = padding_slots(state)
    if slots != state.padding_slots:  # before any worker starts
        return (slots, *_decided(state, now_s))
    return _decided(state, now_s)


def _decided(state: State, now_s: float) -> tuple[Output, ...]:
    if state.membership is not PoolMembership.MEMBER:
        return _outside(state, now_s)
    job_ids = sorted(state.job_ids | {worker.id.job_id for worker in state.running})
    outputs: list[Output] = [_joined(state, now_s)] if _is_awaited(state) else []
    outputs += _noticed(state)
    outputs += _failing(state)
    outputs += [output for job_id in job_ids for output in _for_job(state, job_id, now_s)]
    outputs += starts(state, now_s)
    if state.shutting_down and not state.running:
        outputs.append(_deregister(state, now_s))
    return tuple(outputs)


def wake_at_s(state: State) -> float | None:
    """When the next grace of a stop, wait of a survivor or of a start, or profiling run ends, or this node does."""
    if state.membership is not PoolMembership.MEMBER:
        return None
    due_s: list[float | None] = [None if state.shutting_down or state.until_s is None else state.leaves_at_s]
    due_s += (turn_s(state, state.pool.job(job_id)) for job_id in state.job_ids)
    for worker in state.workers.values():
        job = state.pool.job(worker.id.job_id)
        due_s += (
            kill_due_s(state, worker),
            unnoticed_due_s(state, job, worker),
            crash_due_s(state, job, worker),
            overdue_at_s(state, job, worker),
        )
    return min((at_s for at_s in due_s if at_s is not None), default=None)


# --- the node -------------------------------------------------------------------------------------------


def _outside(state: State, now_s: float) -> tuple[Output, ...]:
    """A node outside the pool runs no worker. Once all have ended, it shuts down, or claims its name and joins."""
    if state.running:
        return tuple(KillWorker(worker=worker.id) for worker in state.running if not worker.kill_requested)
    if state.shutting_down or state.membership is PoolMembership.REPLACED:
        return (ShutDown(replaced=state.membership is PoolMembership.REPLACED),)
    if state.claimed != state.incarnation:
        return ()
    return (_joined(state, now_s),)


def _is_awaited(state: State) -> bool:
    """Planners doubt that this node is still there."""
    node = state.pool.nodes.get(state.node_id)
    return node is not None and node.awaited


def _joined(state: State, now_s: float) -> NodeJoined:
    """The join of this node. A repeated one must be later than the one before, whatever the clock says."""
    node = state.pool.nodes.get(state.node_id)
    since_s = node.since_s if node is not None and node.incarnation == state.incarnation else 0.0
    return NodeJoined(
        node_id=state.node_id,
        incarnation=state.incarnation,
        num_gpus=state.node_specification.num_gpus,
        device=state.node_specification.device,
        sockets=state.node_specification.sockets,
        rack=state.node_specification.rack,
        gpu_type=state.node_specification.gpu_type,
        gpu_memory_bytes=state.node_specification.gpu_memory_bytes,
        isolation=state.node_specification.isolation,
        until_s=state.until_without_notice_s,
        workers_secret=state.node_specification.workers_secret,
        unenforced=state.node_specification.unenforced,
        started_by=state.node_specification.started_by,
        data_folder=state.node_specification.data_folder,
        separates_gpus=state.node_specification.separates_gpus,
        replaced_heard_s=state.replaced_heard_s,
        replaced_starts=state.replaced_starts,
        replaced_preparations=state.replaced_preparations,
        at_s=max(now_s, math.nextafter(since_s, math.inf)),
    )


def _noticed(state: State) -> list[NodeEndNoticed]:
    """What the ledger does not hold yet of the newest notice. It must be later than the one before, whatever the clock
    says, and the same each time until it is folded."""
    newest, node = state.end_noticed, state.pool.nodes.get(state.node_id)
    known = None if node is None else node.notice
    if newest is None or newest.until_s == (None if known is None else known.until_s):
        return []
    at_s = newest.at_s if known is None else max(newest.at_s, math.nextafter(known.at_s, math.inf))
    return [NodeEndNoticed(node_id=state.node_id, incarnation=state.incarnation, until_s=newest.until_s, at_s=at_s)]


def _failing(state: State) -> list[GpuFailing]:
    """The GPUs that should compute nothing, if the ledger does not hold that, or soon will no longer count it."""
    judged = state.gpus_judged
    return [
        GpuFailing(
            node_id=state.node_id, incarnation=state.incarnation, gpu_index=index, reason=reason, at_s=judged.at_s
        )
        for index, reason in (() if judged is None else judged.failing)
        if judged is not None and is_new_failure(state.pool, GpuId(state.node_id, index), reason, judged.at_s)
    ]


def _deregister(state: State, now_s: float) -> NodeLost:
    """The last event of this incarnation. No `WorkersStopped` precedes it: the ledger has requested no stop, and the
    progress of the jobs is in their checkpoints."""
    return NodeLost(node_id=state.node_id, incarnation=state.incarnation, reason="left", at_s=now_s)


# --- one job --------------------------------------------------------------------------------------------


def _for_job(state: State, job_id: str, now_s: float) -> list[Output]:
    job = state.pool.job(job_id)
    workers = state.workers_of(job_id)
    outputs: list[Output] = [*ends(state, job, workers, now_s)]
    if job is None:
        return outputs
    outputs += peers_lost(state, job)
    if can_train(job):
        outputs += _milestones(state, job, now_s)
    outputs += requested_checkpoint(job, workers, state.node_id, now_s)
    if (end := end_of_job(state, job, workers, now_s)) is not None:
        outputs.append(end)
    outputs += artifacts(state, job, now_s)
    still_here = {generation for worker in workers if worker.runs for generation in worker.generations}
    outputs += [
        _stopped(state, job, stopping.generation, now_s)
        for stopping in job.stopping
        if stopping.node_id == state.node_id and stopping.generation not in still_here
    ]
    return outputs


def _stopped(state: State, job: Job, generation: int, now_s: float) -> WorkersStopped:
    workers = (worker for worker in state.workers_of(job.job_id) if worker.id.generation == generation)
    known = (worker.checkpoint_iteration for worker in workers)
    return WorkersStopped(
        job_id=job.job_id,
        generation=generation,
        node_id=state.node_id,
        iteration=max((iteration for iteration in known if iteration is not None), default=None),
        at_s=now_s,
    )


def _milestones(state: State, job: Job, now_s: float) -> list[Output]:
    """What the newest generation has reached: rank 0, if it is here, reports it. It listens before it has switched."""
    events: list[Output] = []
    address = _rendezvous_address(state, job)
    if address and not job.rendezvous:
        events.append(
            RendezvousOpened(job_id=job.job_id, generation=job.generation, address=address, node_id=state.node_id)
        )
    events.extend(
        JobWarned(job_id=job.job_id, generation=job.generation, warning=warning, at_s=now_s, node_id=state.node_id)
        for warning in _new_warnings(state, job)
    )
    events.extend(
        JobWarned(
            job_id=job.job_id,
            generation=job.generation,
            warning=f"its start takes some time: a worker is {phase}",
            phase=phase,
            at_s=now_s,
            node_id=state.node_id,
        )
        for phase in _new_phases(state, job)
    )
    rank0 = state.workers.get(WorkerId(job.job_id, job.generation, 0))
    if rank0 is None:
        return events
    if rank0.trains and job.started_at_s is None:
        events.append(
            GenerationStarted(
                job_id=job.job_id,
                generation=job.generation,
                num_gpus=len(job.gpus),
                iteration=rank0.first_iteration,  # later iterations are not yet on disk
                resize=rank0.resize,
                lost_checkpoints="" if rank0.resize is not None else rank0.lost_checkpoints,
                at_s=now_s,
                node_id=state.node_id,
            )
        )
    if rank0.lagged is not None and is_new_slow_gpu(state.pool, job, rank0.lagged.rank, rank0.lagged_at_s):
        events.append(
            WorkerLagged(
                job_id=job.job_id,
                generation=job.generation,
                rank=rank0.lagged.rank,
                slowdown=rank0.lagged.slowdown,
                num_virtual_nodes=rank0.lagged.num_virtual_nodes,
                at_s=rank0.lagged_at_s,
                node_id=state.node_id,
            )
        )
    if isinstance(rank0.outcome, from_worker.Profiled) and not _is_measured(state, job):
        events.append(_measured(job, rank0.outcome, state.node_id, now_s))
    return events


def _new_warnings(state: State, job: Job) -> list[str]:
    """The warnings of rank 0, and those that are about another worker alone."""
    found = (
        warned.warning
        for worker in state.workers_of(job.job_id)
        if worker.id.generation == job.generation
        for warned in worker.warnings
        if warned.is_own or worker.id.rank == 0
    )
    return [warning for warning in dict.fromkeys(found) if is_new_warning(job, warning)]


def _new_phases(state: State, job: Job) -> list[str]:
    """What the code of workers here does in this start, each once: workers in different phases take no turns."""
    if job.training_generation is not None or job.broken:
        return []
    starting = (worker for worker in state.workers_of(job.job_id) if worker.id.generation == job.generation)
    phases = dict.fromkeys(worker.phase for worker in starting if worker.runs and not worker.trains)
    return [phase for phase in phases if phase and is_new_phase(job, phase)]


def _rendezvous_address(state: State, job: Job) -> str:
    """host:port of the rendezvous of the newest generation, if it is open on this node."""
    for worker in state.workers_of(job.job_id):
        is_rank0 = worker.newest_generation == job.generation and worker.rendezvous_rank == 0
        if worker.runs and is_rank0:
            return f"{state.node_specification.advertise_host}:{worker.port}" if worker.port is not None else ""
    return ""


def _is_measured(state: State, job: Job) -> bool:
    """Its throughput on this many GPUs is known, or no longer needed."""
    curve = state.pool.curves.get(spec_of(job).profile_key)
    known = curve is not None and len(job.gpus) in curve.iterations_per_s
    return known or job.phase is not Phase.PROFILING


def _measured(job: Job, profiled: from_worker.Profiled, node_id: str, now_s: float) -> ThroughputMeasured:
    return ThroughputMeasured(
        profile_key=spec_of(job).measured_key,
        num_gpus=len(job.gpus),
        iterations_per_s=profiled.iterations_per_s,
        dataset_size=profiled.dataset_size,
        single_gpu=profiled.single_gpu,
        one_virtual_node_s=profiled.one_virtual_node_s,
        virtual_nodes=profiled.virtual_nodes,
        job_id=job.job_id,
        generation=job.generation,
        source="profile",
        at_s=now_s,
        node_id=node_id,
    )
