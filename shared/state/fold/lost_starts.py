"""The fold of starts that lost a node: which of them may be the job's doing. Part of `ledger_fold`.

A lost start needs an executor that lived when its worker was to start, and another node that outlived it; and neither
the node's machine nor what had started its executor was started again (docs/adr/0096).
"""

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.events import NodeJoined
from elasticflow.shared.state.fold.jobs import with_job
from elasticflow.shared.state.job import Job, nodes_of
from elasticflow.shared.state.pool import NodeState, PoolState


def end_of_executor_s(replaced: NodeState, joined: NodeJoined) -> float | None:
    """When an executor ended by itself: it is back, and what had started it lives. None if that is not known."""
    same = replaced.started_by == joined.started_by != ""
    return joined.replaced_heard_s if same else None


def with_lost_start(state: PoolState, job: Job, node_id: str, ended_s: float) -> Job:
    """The job after the executor of this node has ended, last heard at ended_s, with its workers.

    One end of an executor loses one start: if it explains the crash before, it lost that one.
    """
    starts = job.started_at_s is None and job.previous_generation is None and not job.broken and not job.stopping
    lived = ended_s + state.config.timeouts.monitor_grace_s >= job.placed_at_s  # else a heartbeat was due before
    if not starts or not lived or node_id not in nodes_of(job.gpus) or _explains_crash(state, job, node_id, ended_s):
        return job
    return fast_replace(job, nodes_lost_at_start=(*job.nodes_lost_at_start, node_id))


def with_crash_of_lost_node(state: PoolState, node_id: str, heard_s: float | None, *, is_jobs_doing: bool) -> PoolState:
    """The pool after a node has ended, last heard at heard_s: a crash of a peer at the start counts no more.

    Workers notice a lost peer before the monitor does. is_jobs_doing: the job may have ended the node, so the start is
    lost; else its machine was started again.
    """
    if heard_s is None:
        return state
    for job in state.live_jobs.values():
        if _explains_crash(state, job, node_id, heard_s):
            lost = (*job.nodes_lost_at_start, node_id) if is_jobs_doing else job.nodes_lost_at_start
            job = fast_replace(job, crashed_start=None, restarts=max(job.restarts - 1, 0), nodes_lost_at_start=lost)
            state = with_job(state, job)
    return state


def _explains_crash(state: PoolState, job: Job, node_id: str, heard_s: float) -> bool:
    """Whether the end of this node, last heard at heard_s, is why a peer crashed at the newest start."""
    start = job.crashed_start
    if start is None or node_id == start.reporter or node_id not in start.nodes:
        return False
    return start.placed_at_s - state.config.timeouts.monitor_grace_s <= heard_s <= start.crashed_at_s


def with_lost_starts_judged(state: PoolState, started_again: str = "") -> PoolState:
    """The pool after a node was lost or has joined: it may show that an earlier loss was not a job's doing.

    started_again: a node that ended with its machine, or with what had started its executor. An executor that ended by
    itself and that no other node outlived counts as one crash of the job, of which a job may have more.
    """
    for job in state.live_jobs.values():
        lost = tuple(node_id for node_id in job.nodes_lost_at_start if node_id != started_again)
        kept = tuple(node_id for node_id in lost if _is_outlived(state, node_id))
        if len(kept) < len(job.nodes_lost_at_start):
            crashes = sum(state.nodes[node_id].alive for node_id in lost if node_id not in kept)
            job = fast_replace(job, nodes_lost_at_start=kept, restarts=job.restarts + crashes)
            state = with_job(state, job)
    return state


def _is_outlived(state: PoolState, node_id: str) -> bool:
    """Whether another node lived for longer than this one, as far as is known; nodes without power end together."""
    lost = state.nodes.get(node_id)
    if lost is None or lost.ended_s is None:
        return True
    later_s = lost.ended_s + state.config.timeouts.lease_s
    return any(
        (node.alive and node.since_s <= lost.ended_s) or (node.ended_s is not None and node.ended_s > later_s)
        for node in state.nodes.values()
        if node.node_id != node_id
    )
