"""The fold of the ledger: `evolve(state, message, sequence)` for the one state that all services share.

Total and idempotent: an event that is late, repeated, of an older generation or about an unknown job or node
changes nothing. No clock and no randomness: events carry their own times.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import Event, PlanDecided
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.state.fold.admission import (
    accepted,
    amended,
    configured,
    gpu_limits_cleared,
    gpu_limits_set,
    gpu_type_changed,
    gpu_type_kept,
    quote_reserved,
    rejected,
)
from elasticflow.shared.state.fold.jobs import (
    JobEnd,
    artifacts_stored,
    ended,
    is_intact,
    is_outdated_failure,
    is_outdated_finish,
    may_report_end,
    scheduling_event,
    with_job,
    with_measured_mix,
    with_slower_mix,
)
from elasticflow.shared.state.fold.loads import with_load_event
from elasticflow.shared.state.fold.nodes import (
    gpu_failing,
    node_drain_started,
    node_end_announced,
    node_end_noticed,
    node_joined,
    node_lost,
)
from elasticflow.shared.state.fold.plan import (
    allocated,
    commands_decided,
    placed,
    profiling_failed,
    with_failures_forgotten,
)
from elasticflow.shared.state.fold.profiles import profile_completed, throughput_measured
from elasticflow.shared.state.fold.workers import (
    checkpoint_completed,
    generation_started,
    gpu_limits_yield,
    job_warned,
    memory_exceeded,
    progressed,
    start_phase_reported,
    with_speed_ratio,
    with_start_cost,
    worker_crashed,
    worker_lagged,
    workers_gone_after_the_end,
    workers_stopped,
)
from elasticflow.shared.state.gpu_types import submitted_spec
from elasticflow.shared.state.job import Phase, has_workers_on
from elasticflow.shared.state.nodes import is_still_there, with_speed_on_node
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState

# --- idle windows --------------------------------------------------------------------------------------
# The fold of idle windows: a GPU is idle while it is there and the newest placement of no job names it.
#
# Axes: G = GPUs of a node.

# All others leave every job on its GPUs. Most messages of a ledger are others: this is known sooner than what changed.
MOVES_JOBS = (
    events.PlacementDecided,
    events.JobFinished,
    events.JobFailed,
    events.JobCancelled,
    events.JobProfiled,
    events.JobRejected,
)
CHANGES_NODES = (events.NodeJoined, events.NodeLost)


def with_idle_windows(before: PoolState, after: PoolState, event: Event) -> PoolState:
    """`after`, the state after an event, with the windows that the event begins and ends."""
    if isinstance(event, CHANGES_NODES):
        return _with_node(before, after, event) if after.nodes is not before.nodes else after
    if not isinstance(event, MOVES_JOBS) or after.live_jobs is before.live_jobs:
        return after
    is_placement = isinstance(event, events.PlacementDecided)
    job_ids = [placed.job_id for placed in event.placements] if is_placement else [event.job_id]
    left, taken = set[GpuId](), set[GpuId]()
    for job_id in job_ids:
        left.update(_gpus(before, job_id))
        taken.update(_gpus(after, job_id))
    return _with_gpus(after, left - taken, taken, event.at_s) if left or taken else after


def _gpus(state: PoolState, job_id: str) -> tuple[GpuId, ...]:
    job = state.live_jobs.get(job_id)
    return job.gpus if job is not None else ()


def _with_gpus(state: PoolState, idle: Iterable[GpuId], taken: Iterable[GpuId], at_s: float) -> PoolState:
    """Windows begin on the GPUs `idle`, unless they are idle already, and end on the GPUs `taken`.

    A job may take GPUs that it held before: their node was lost and came back, idle.
    """
    is_idle_by_node = defaultdict[str, dict[int, bool]](dict)
    for gpus, is_idle in ((idle, True), (taken, False)):
        for gpu in gpus:
            is_idle_by_node[gpu.node_id][gpu.gpu_index] = is_idle
    lengths_s, idle_since_s = list[float](), state.idle_since_s.mutate()
    for node_id, is_idle_by_gpu in is_idle_by_node.items():
        if node_id in idle_since_s:
            since_s_G = list(idle_since_s[node_id])
            for gpu, is_idle in is_idle_by_gpu.items():
                if gpu >= len(since_s_G):  # the node joined anew with fewer GPUs
                    continue
                lengths_s += [] if is_idle else [at_s - since_s_G[gpu]]
                since_s_G[gpu] = min(since_s_G[gpu], at_s) if is_idle else CARRIES_A_JOB
            idle_since_s[node_id] = tuple(since_s_G)
    return fast_replace(
        state, idle_since_s=idle_since_s.finish(), idle_windows=state.idle_windows.added(sorted(lengths_s))
    )


def _with_node(before: PoolState, after: PoolState, event: events.NodeJoined | events.NodeLost) -> PoolState:
    """A node that joins is idle; the windows of one that is lost end.

    A node that says again that it is there may carry jobs, and its windows go on.
    """
    if isinstance(event, events.NodeJoined) and is_still_there(before.nodes, event):
        return after
    node, known = after.nodes.get(event.node_id), before.idle_since_s.get(event.node_id, ())
    idle_since_s = after.idle_since_s.delete(event.node_id) if known else after.idle_since_s
    if node is not None and node.alive:
        idle_since_s = idle_since_s.set(event.node_id, (event.at_s,) * node.num_gpus)
    windows = after.idle_windows.added(event.at_s - since_s for since_s in known)
    return fast_replace(after, idle_since_s=idle_since_s, idle_windows=windows)


# --- ledger fold ---------------------------------------------------------------------------------------

FOLD = 46  # raise it when the same messages fold to another state: older snapshots are then not read

_BY_SERVICES = (  # executors report the others, each on the jobs that have workers on its node
    *(events.JobCancelled, events.JobProfiled, events.JobAmended, events.JobProgressed, events.JobAtRisk),
    *(events.GpuLimitsSet, events.GpuLimitsCleared, events.GpuTypeChanged, events.GpuTypeKept),
    events.CheckpointRequested,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A message of the ledger that this reader cannot decode. on_plan: it may be a decision; problems: why not."""

    on_plan: bool
    problems: tuple[str, ...] = ()


LedgerMessage = Event | PlanDecided | Unreadable


def evolve(state: PoolState, message: LedgerMessage, sequence: int) -> PoolState:
    """The state after the ledger's message at this sequence. Messages up to state.sequence change nothing.

    After an unreadable one only the sequences advance.
    """
    if sequence <= state.sequence:
        return state
    if isinstance(message, Unreadable):
        if not message.on_plan:
            return fast_replace(state, sequence=sequence)
        return fast_replace(state, sequence=sequence, plan_sequence=sequence, unreadable_plan_sequence=sequence)
    if not isinstance(message, PlanDecided):
        return fast_replace(_applied(state, message, sequence), sequence=sequence)
    for event in message.events:
        state = _applied(state, event, sequence)
    state = commands_decided(state, message, sequence)
    if message.service == "allocator":
        state = fast_replace(state, allocation_based_on=message.based_on)
    return fast_replace(state, sequence=sequence, plan_sequence=sequence)


def _applied(state: PoolState, event: Event, sequence: int) -> PoolState:
    return with_idle_windows(state, apply(state, event, sequence), event)


def apply(state: PoolState, event: Event, sequence: int) -> PoolState:
    """The state after one event, without the sequence numbers."""
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
            return placed(state, event, sequence)
        case events.ProfileCompleted():
            return profile_completed(state, event)
        case events.NodeJoined():
            return node_joined(state, event, sequence)
        case events.NodeLost():
            return node_lost(state, event, sequence)
        case events.NodeEndAnnounced():
            return node_end_announced(state, event, sequence)
        case events.NodeEndNoticed():
            return node_end_noticed(state, event, sequence)
        case events.GpuFailing():
            return gpu_failing(state, event)
        case events.NodeDrainStarted():
            return node_drain_started(state, event)
        case events.QuoteReserved():
            return quote_reserved(state, event, sequence)
        case (
            events.CancelRejected()
            | events.QuoteRejected()
            | events.AmendRejected()
            | events.GpuLimitsRejected()
            | events.CheckpointRejected()
            | events.CheckpointUpToDate()
            | events.WorkerEntered()
            | events.EpochBegan()
            | events.SnapshotSaved()
        ):
            return state
        case events.ThroughputMeasured():
            return throughput_measured(state, event, sequence)
        case events.ArtifactsStored():
            return artifacts_stored(state, event, sequence)
        case (
            events.LoadOpened()
            | events.LoadRejected()
            | events.LoadSealed()
            | events.SealRejected()
            | events.LoadCancelled()
            | events.CancelLoadRejected()
            | events.LoadProgressed()
            | events.LoadFinished()
        ):
            return with_load_event(state, event, sequence)
        case _:
            return _of_a_job(state, event, sequence)


def _of_a_job(
    state: PoolState,
    event: events.JobCancelled
    | events.JobProfiled
    | events.JobAmended
    | events.GpuLimitsSet
    | events.GpuLimitsCleared
    | events.GpuTypeChanged
    | events.GpuTypeKept
    | events.CheckpointRequested
    | events.CheckpointWritten
    | events.CheckpointFailed
    | events.RendezvousOpened
    | events.GenerationStarted
    | events.WorkersStopped
    | events.WorkerCrashed
    | events.WorkerLagged
    | events.JobWarned
    | events.MemoryExceeded
    | events.JobProgressed
    | events.JobFinished
    | events.JobFailed
    | events.ProfilingFailed
    | events.JobAtRisk,
    sequence: int,
) -> PoolState:
    job = state.live_jobs.get(event.job_id)
    if job is None:
        return workers_gone_after_the_end(state, event)
    if not isinstance(event, _BY_SERVICES) and event.node_id is not None and not has_workers_on(job, event.node_id):
        return state
    match event:
        case events.JobCancelled():
            return ended(state, job, JobEnd(Phase.CANCELLED, event.at_s, event.reason), sequence)
        case events.JobProfiled():
            return ended(state, job, JobEnd(Phase.PROFILED, event.at_s), sequence) if job.profile_only else state
        case events.JobAmended():
            return amended(state, job, event, sequence)
        case events.GpuLimitsSet():
            return gpu_limits_set(state, job, event, sequence)
        case events.GpuLimitsCleared():
            return gpu_limits_cleared(state, job, sequence)
        case events.GpuTypeChanged():
            return gpu_type_changed(state, job, event, sequence)
        case events.GpuTypeKept():
            return gpu_type_kept(state, job, event, sequence)
        case events.JobFailed():
            if not may_report_end(job, event.generation) or is_outdated_failure(state, job, event):
                return state
            iteration = job.iteration if event.iteration is None else max(job.iteration, event.iteration)
            job = fast_replace(job, iteration=iteration, traceback=event.traceback, last_lines=event.last_lines)
            if job.phase is Phase.PROFILING:
                state = with_failures_forgotten(state, submitted_spec(job))
            return ended(state, job, JobEnd(Phase.FAILED, event.at_s, event.error), sequence)
        case events.ProfilingFailed():
            if not may_report_end(job, event.generation) or is_outdated_failure(state, job, event):
                return state
            return profiling_failed(state, job, event, sequence) if job.phase is Phase.PROFILING else state
        case events.JobFinished():
            if not may_report_end(job, event.generation) or job.phase is Phase.PROFILING:
                return state
            if job.submitted_spec is not None and is_outdated_finish(job, event):
                return state
            job = fast_replace(job, iteration=event.iteration, metrics=event.metrics)
            return ended(state, job, JobEnd(Phase.FINISHED, event.at_s, node_id=event.node_id), sequence)
        case events.CheckpointRequested():
            stores = event.store or job.stores_checkpoint  # it replaces a request that has no answer so far
            return with_job(state, fast_replace(job, checkpoint_request=sequence, stores_checkpoint=stores))
        case events.CheckpointWritten() | events.CheckpointFailed():
            return with_job(state, checkpoint_completed(job, event, sequence))
        case events.WorkersStopped():
            return with_job(state, workers_stopped(job, event))
        case events.WorkerCrashed():
            return worker_crashed(state, job, event, sequence)
        case events.WorkerLagged():
            return worker_lagged(state, job, event)
        case events.JobWarned():
            if event.phase:
                return with_job(state, start_phase_reported(job, event))
            is_of_earlier_job = 0 < event.generation <= job.void_generation
            return state if is_of_earlier_job else with_job(state, job_warned(job, event.warning))
        case events.MemoryExceeded():
            return memory_exceeded(state, job, event, sequence)
        case events.RendezvousOpened():
            if not is_intact(job, event.generation) or job.rendezvous:
                return state
            return with_job(state, fast_replace(job, rendezvous=event.address))
        case events.GenerationStarted():
            after = generation_started(state, job, event)
            state = with_job(with_start_cost(state, job, event), after)
            repeats = event.lost_checkpoints and after is not job  # it needs more time than was planned
            return scheduling_event(state, sequence) if repeats else state
        case events.JobProgressed():
            after = progressed(job, event)
            if after is job:
                return state
            state = with_speed_on_node(with_job(state, after), after, event)
            state = with_speed_ratio(state, after, event, sequence)
            if job.starts_over and not after.starts_over:  # its first snapshot: it may now give GPUs to other jobs
                state = scheduling_event(state, sequence)
            return with_slower_mix(with_measured_mix(state, after, event), after, event, sequence)
        case events.JobAtRisk():
            if job.at_risk or job.phase is Phase.PROFILING or event.generation != job.generation:
                return state
            if job.at_risk_since_s is not None and event.at_s <= job.at_risk_since_s:
                return state  # repeated after its promise has changed
            job = fast_replace(
                job,
                at_risk=True,
                at_risk_since_s=event.at_s,
                earliest_deadline_s=event.earliest_deadline_s,
            )
            return scheduling_event(with_job(gpu_limits_yield(state, event), job), sequence)
        case _:
            assert_never(event)
