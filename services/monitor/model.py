"""What the monitor knows beside the ledger: who was heard when, and how each job moves. Decisions: `policy`."""

from dataclasses import dataclass, replace
from typing import cast

from immutables import Map

from shared.messages import lifecycle
from shared.messages.events import NodeReported, WorkerReport
from shared.messages.job_state import Job
from shared.messages.policy import LedgerMessage
from shared.messages.pool_state import PoolState

RATE_WEIGHT = 0.3  # of the newest report in the running mean of a job's speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Said at each beat while the bus is connected: a heartbeat would have been heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The last heartbeat of a node, or the moment from which one could have been heard."""

    incarnation: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What rank 0 of a generation said."""

    generation: int
    since_s: float
    report: WorkerReport
    at_s: float
    moved_at_s: float  # when its iteration last grew
    mean_iterations_per_s: float | None


_NOBODY = cast("Map[str, Heard]", Map())
_NOTHING = cast("Map[str, Watched]", Map())


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The folded ledger and what was heard beside it."""

    pool: PoolState
    heard: Map[str, Heard] = _NOBODY
    watched: Map[str, Watched] = _NOTHING
    listening_since_s: float | None = None
    listened_at_s: float = 0.0

    def deaf(self, now_s: float) -> bool:
        """Who was silent may have spoken: too long ago since we listened, or the clock was set back."""
        return not 0.0 <= now_s - self.listened_at_s <= self.pool.config.detection.deaf_s


def start(pool: PoolState) -> State:
    return State(pool=pool)


def evolve(state: State, message: LedgerMessage, sequence: int) -> State:
    """Fold one message of the ledger; jobs that ended are watched no longer, nodes long gone not waited for."""
    pool = lifecycle.evolve(state.pool, message, sequence)
    watched, heard = state.watched, state.heard
    if pool.ended_jobs is not state.pool.ended_jobs:
        for job_id in state.watched:
            if job_id not in pool.live_jobs:
                watched = watched.delete(job_id)
    if pool.nodes is not state.pool.nodes:
        for node_id in state.heard:
            if node_id in state.pool.nodes and node_id not in pool.nodes:
                heard = heard.delete(node_id)
    return replace(state, pool=pool, watched=watched, heard=heard)


def observe(state: State, note: object, now_s: float) -> State:
    """Take in a heartbeat, or the sign that heartbeats can be heard."""
    if isinstance(note, Listening):
        since_s = now_s if state.listening_since_s is None or state.deaf(now_s) else state.listening_since_s
        return _expecting(replace(state, listened_at_s=now_s, listening_since_s=since_s), now_s)
    if isinstance(note, NodeReported):
        return _heard(state, note, now_s)
    return state


def _expecting(state: State, now_s: float) -> State:
    """Nodes that we meet have a full timeout from now: the time of their joining is of another clock."""
    heard = state.heard
    for node_id, node in state.pool.nodes.items():
        known = heard.get(node_id)
        if node.alive and (known is None or known.incarnation != node.incarnation):
            heard = heard.set(node_id, Heard(incarnation=node.incarnation, at_s=now_s))
    return replace(state, heard=heard)


def _heard(state: State, reported: NodeReported, now_s: float) -> State:
    node = state.pool.nodes.get(reported.node_id)
    if node is not None and node.incarnation != reported.incarnation:
        return state  # an earlier life of the node, or one whose joining is still on its way
    heard = Heard(incarnation=reported.incarnation, at_s=now_s)
    state = replace(state, heard=state.heard.set(reported.node_id, heard))
    for report in reported.workers:
        job, before = state.pool.live_jobs.get(report.job_id), state.watched.get(report.job_id)
        if report.rank == 0 and job is not None and is_watched(job, report.generation):
            if before is not None and before.generation > report.generation:
                continue  # another node's word, from before the job was handed over
            watched = _watched(before, report, now_s)
            state = replace(state, watched=state.watched.set(report.job_id, watched))
    return state


def is_watched(job: Job, generation: int) -> bool:
    """Its rank 0 speaks for the job: in the newest generation, or in that which trains on until then."""
    return generation in (job.generation, job.training_generation)


def _watched(before: Watched | None, report: WorkerReport, now_s: float) -> Watched:
    if before is None or before.generation != report.generation:
        return Watched(
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
    moved = report.iteration > before.report.iteration
    return replace(
        before,
        report=report,
        at_s=now_s,
        moved_at_s=now_s if moved else before.moved_at_s,
        mean_iterations_per_s=mean,
    )
