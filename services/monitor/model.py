"""The state of the monitor beside the ledger: heartbeats of nodes and progress of jobs. `policy` decides on it."""

from dataclasses import dataclass, replace
from typing import cast

from elasticflow.shared.messages.events import NodeReported, WorkerReport
from elasticflow.shared.messages.events.nodes import KnownStarts, Starts
from elasticflow.shared.messages.load_spec import Ranges
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.shared.state.pool import PoolState

FENCE_EVERY_REPLY_TIMEOUTS = 2.0  # between two attempts to fence a node
RATE_WEIGHT = 0.3  # of the newest report in the running mean of a job's speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """Noted at each heartbeat interval while the bus is connected: a heartbeat would have arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStored:
    """NATS has stored this heartbeat, as this revision of the node's record."""

    heartbeat: NodeReported
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsCounted:
    """These tasks of a padding load have results, up to a sequence of the result stream."""

    load_id: str
    num_results: int = 0
    counted: Ranges = ()
    counted_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceNode:
    """Action: store a fence in the node's record, if its last heartbeat is still this revision (0: unknown)."""

    node_id: str
    incarnation: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIsFenced:
    """The fence is stored: no heartbeat of this incarnation is acknowledged any more."""

    node_id: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHeartbeat:
    """The last heartbeat of a node, or the instant from which one could have arrived.

    revision: 0 if none has arrived. fence_due_s: not before then another attempt to fence the node.
    """

    incarnation: str
    at_s: float
    revision: int = 0
    lease_s: float = 0.0
    starts: Starts = None
    preparations: KnownStarts = ()
    fence_due_s: float = 0.0
    is_fenced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest report of a generation's rank 0."""

    generation: int
    since_s: float
    report: WorkerReport
    at_s: float
    moved_at_s: float  # when the iteration last increased, or an evaluation moved on
    mean_iterations_per_s: float | None


_NO_HEARTBEATS = cast("Map[str, LastHeartbeat]", Map())
_NO_PROGRESS = cast("Map[str, Progress]", Map())
_NO_TIMES = cast("Map[str, float]", Map())
_NO_COUNTS = cast("Map[str, ResultsCounted]", Map())


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorState:
    """The folded ledger, and the heartbeats and reports beside it.

    prepared_at_s: by job, when a node last said that it installs the job's packages before it starts workers.
    """

    pool: PoolState
    heartbeats: Map[str, LastHeartbeat] = _NO_HEARTBEATS
    progress: Map[str, Progress] = _NO_PROGRESS
    prepared_at_s: Map[str, float] = _NO_TIMES
    counts: Map[str, ResultsCounted] = _NO_COUNTS  # by live padding load
    connected_since_s: float | None = None
    connected_at_s: float = 0.0

    def is_disconnected(self, now_s: float) -> bool:
        """Whether heartbeats may have been missed: no sign of the bus for the grace time, or the clock was set back."""
        return not 0.0 <= now_s - self.connected_at_s <= self.pool.config.timeouts.monitor_grace_s


def start(pool: PoolState) -> MonitorState:
    return MonitorState(pool=pool)


def evolve(state: MonitorState, message: LedgerMessage, sequence: int) -> MonitorState:
    """Fold one message of the ledger; forget reports of ended jobs and loads, and heartbeats of removed nodes."""
    pool = ledger_fold.evolve(state.pool, message, sequence)
    progress, heartbeats, counts = state.progress, state.heartbeats, state.counts
    prepared_at_s = state.prepared_at_s
    if pool.loads is not state.pool.loads:
        for load_id in state.counts:
            if load_id not in pool.loads or not pool.loads[load_id].live:
                counts = counts.delete(load_id)
    if pool.ended_jobs is not state.pool.ended_jobs:
        for job_id in state.progress:
            if job_id not in pool.live_jobs:
                progress = progress.delete(job_id)
        for job_id in state.prepared_at_s:
            if job_id not in pool.live_jobs:
                prepared_at_s = prepared_at_s.delete(job_id)
    if pool.nodes is not state.pool.nodes:
        for node_id in state.heartbeats:
            if node_id in state.pool.nodes and node_id not in pool.nodes:
                heartbeats = heartbeats.delete(node_id)
    return replace(
        state, pool=pool, progress=progress, prepared_at_s=prepared_at_s, heartbeats=heartbeats, counts=counts
    )


def observe(state: MonitorState, note: object, now_s: float) -> MonitorState:
    """Fold a heartbeat, the sign that heartbeats can arrive, an attempt to fence a node and its success, or a count."""
    if isinstance(note, Connected):
        since_s = now_s if state.connected_since_s is None or state.is_disconnected(now_s) else state.connected_since_s
        return _expecting(replace(state, connected_at_s=now_s, connected_since_s=since_s), now_s)
    if isinstance(note, HeartbeatStored):
        return _with_heartbeat(state, note, now_s)
    if isinstance(note, FenceNode | NodeIsFenced):
        return _with_fence(state, note, now_s)
    if isinstance(note, ResultsCounted):
        load = state.pool.loads.get(note.load_id)
        if load is None or not load.live:
            return state
        return replace(state, counts=state.counts.set(note.load_id, note))
    return state


def _expecting(state: MonitorState, now_s: float) -> MonitorState:
    """Nodes that are new here get a full timeout from now: their time of joining is of another clock."""
    heartbeats = state.heartbeats
    for node_id, node in state.pool.nodes.items():
        known = heartbeats.get(node_id)
        if node.alive and (known is None or known.incarnation != node.incarnation):
            heartbeats = heartbeats.set(node_id, LastHeartbeat(incarnation=node.incarnation, at_s=now_s))
    return replace(state, heartbeats=heartbeats)


def _with_fence(state: MonitorState, note: FenceNode | NodeIsFenced, now_s: float) -> MonitorState:
    known = state.heartbeats.get(note.node_id)
    if known is None or known.incarnation != note.incarnation:
        return state
    if isinstance(note, FenceNode):
        known = replace(
            known, fence_due_s=now_s + FENCE_EVERY_REPLY_TIMEOUTS * state.pool.config.timeouts.bus_reply_timeout_s
        )
    else:
        known = replace(known, is_fenced=True)
    return replace(state, heartbeats=state.heartbeats.set(note.node_id, known))


def _with_heartbeat(state: MonitorState, stored: HeartbeatStored, now_s: float) -> MonitorState:
    reported = stored.heartbeat
    node, known = state.pool.nodes.get(reported.node_id), state.heartbeats.get(reported.node_id)
    if node is not None and node.incarnation != reported.incarnation:
        return state  # an earlier incarnation of the node, or one whose NodeJoined has not arrived yet
    if known is not None and known.incarnation == reported.incarnation and known.revision >= stored.revision:
        return state  # delivered twice, or late
    heartbeat = LastHeartbeat(
        incarnation=reported.incarnation,
        at_s=now_s,
        revision=stored.revision,
        lease_s=reported.lease_s,
        starts=reported.starts,
        preparations=reported.preparations,
    )
    state = replace(state, heartbeats=state.heartbeats.set(reported.node_id, heartbeat))
    for job_id in reported.preparing:
        if job_id in state.pool.live_jobs:
            state = replace(state, prepared_at_s=state.prepared_at_s.set(job_id, now_s))
    for report in reported.workers:
        job, before = state.pool.live_jobs.get(report.job_id), state.progress.get(report.job_id)
        if report.rank == 0 and job is not None and reports_progress(job, report.generation):
            if before is not None and before.generation > report.generation:
                continue  # another node's report, from before the switch
            progress = _next_progress(before, report, now_s)
            state = replace(state, progress=state.progress.set(report.job_id, progress))
    return state


def reports_progress(job: Job, generation: int) -> bool:
    """Whether rank 0 of this generation reports for the job: the newest, or the one that trains until the switch."""
    return generation in (job.generation, job.training_generation)


def _next_progress(before: Progress | None, report: WorkerReport, now_s: float) -> Progress:
    if before is None or before.generation != report.generation:
        return Progress(
            generation=report.generation,
            since_s=now_s,
            report=report,
            at_s=now_s,
            moved_at_s=now_s,
            mean_iterations_per_s=report.iterations_per_s,
        )
    mean = before.mean_iterations_per_s
    if report.iterations_per_s is not None and report.iteration > before.report.iteration:
        newest = report.iterations_per_s
        mean = newest if mean is None else (1 - RATE_WEIGHT) * mean + RATE_WEIGHT * newest
    moved_at_s = now_s if report.iteration > before.report.iteration else before.moved_at_s
    if report.seconds_since_progress is not None:
        moved_at_s = max(moved_at_s, now_s - report.seconds_since_progress)
    return replace(
        before,
        report=report,
        at_s=now_s,
        moved_at_s=moved_at_s,
        mean_iterations_per_s=mean,
    )
