"""The fold of nodes that join and leave. Part of `ledger_fold`."""

from dataclasses import replace
from typing import NamedTuple

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import NodeJoined
from elasticflow.shared.messages.events.nodes import KnownStarts, Starts
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.state.fold.jobs import scheduling_event, with_job, with_lost_workers
from elasticflow.shared.state.gpu_types import type_of_profile
from elasticflow.shared.state.job import Job, nodes_of
from elasticflow.shared.state.nodes import confirmed, is_started_again, with_awaited_nodes, without_speeds_on_node
from elasticflow.shared.state.pool import NodeState, NoticedEnd, PoolState, SlowGpu, slow_gpu, spec_of, with_nodes

# --- The fold of starts that lost a node: which of them may be the job's doing -------------------------
# A lost start needs an executor that had begun to start the job's workers, and another node that outlived it; and
# neither the node's machine nor what had started its executor was started again (docs/adr/0096).


def _same_start(replaced: NodeState, joined: NodeJoined) -> bool:
    """Whether only the executor had ended: it is back, and what had started it lives. False if that is not known."""
    return replaced.started_by == joined.started_by != ""


MAX_UNWITNESSED = 16  # of a job; far more than it may have crashes
MAX_ENDED_STARTS = 64  # of a job; a start may be on many nodes


class NodeEnd(NamedTuple):
    """How an executor has ended: it was last heard at heard_s, when it had begun these starts. Of those that are
    preparations, no worker had run there."""

    node_id: str
    heard_s: float
    starts: Starts
    preparations: KnownStarts

    def newest_start(self, job: Job) -> int:
        """The newest generation of the job that it had begun to start; 0: none."""
        started = [generation for job_id, generation in self.starts or () if job_id == job.job_id]
        return max(started, default=0)


def with_ended_starts(state: PoolState, end: NodeEnd) -> PoolState:
    """The pool after a node has ended: each job that it had begun to start, and that does not train, was there."""
    for job_id in sorted({job_id for job_id, _ in end.starts or ()}):
        job = state.live_jobs.get(job_id)
        if job is not None and _may_be_doing_of(job, generation := end.newest_start(job)):
            ended = dict.fromkeys((*job.ended_starts, (generation, end.node_id)))
            state = with_job(state, fast_replace(job, ended_starts=tuple(ended)[-MAX_ENDED_STARTS:]))
    return state


def _may_be_doing_of(job: Job, generation: int) -> bool:
    """Whether this start may have ended a node: it has not trained, and its job does not train now."""
    if job.started_at_s is not None or job.previous_generation is not None or generation <= job.void_generation:
        return False
    return generation > job.settled_generation or generation in {known for known, _ in job.ended_starts}


def suspects(state: PoolState, end: NodeEnd) -> set[str]:
    """Of the jobs that may have ended the node, those that were there at the most such ends since they last trained.

    A job that ends nodes is there each time, and never trains. Crashes of workers, which their nodes survive, count for
    nothing, nor does it whether an earlier end was held against the job.
    """
    named = (state.live_jobs.get(job_id) for job_id, _ in end.starts or ())
    there = {
        job.job_id: _num_ended(job)
        for job in named
        if job is not None and (end.newest_start(job), end.node_id) in job.ended_starts
    }
    most = max(there.values(), default=None)
    return {job_id for job_id, number in there.items() if number == most}


def _num_ended(job: Job) -> tuple[int, int]:
    """Starts during which nodes have ended, and these nodes."""
    return len({generation for generation, _ in job.ended_starts}), len(job.ended_starts)


def with_lost_start(state: PoolState, job: Job, end: NodeEnd) -> Job:
    """The job after the end of an executor, with its workers.

    One end of an executor loses one start: if it explains the crash before, it lost that one. A start stays lost if the
    job was placed anew while the node was silent.
    """
    if job.started_at_s is not None or job.previous_generation is not None:
        return job
    if _explains_crash(state, job, end):
        return job
    if end.starts is None:
        lived = (
            end.heard_s + state.config.timeouts.monitor_grace_s >= job.placed_at_s
        )  # else a heartbeat was due before
        may_have_begun = not job.broken and not job.stopping and end.node_id in nodes_of(job.gpus)
        generation = job.generation if lived and may_have_begun else 0
    else:
        generation = end.newest_start(job)
        if job.crashed_start is not None and job.crashed_start.generation == generation:
            return job  # it counts as a crash
    return _with_lost_start_of(job, generation, end)


def _with_lost_start_of(job: Job, generation: int, end: NodeEnd) -> Job:
    """The job with one more lost start, or preparation, unless this generation has trained or is lost already."""
    if generation <= max(job.settled_generation, job.void_generation):
        return job
    if (job.job_id, generation) in end.preparations:
        job = fast_replace(job, nodes_lost_in_preparation=(*job.nodes_lost_in_preparation, end.node_id))
    else:
        job = fast_replace(job, nodes_lost_at_start=(*job.nodes_lost_at_start, end.node_id))
    return fast_replace(job, settled_generation=generation)


def with_crash_of_lost_node(state: PoolState, end: NodeEnd, *, is_jobs_doing: bool) -> PoolState:
    """The pool after a node has ended: a crash of a peer at the start counts no more.

    Workers notice a lost peer before the monitor does. is_jobs_doing: a job may have ended the node, so the start is
    lost if the node had begun it and suspects the job; else its machine was started again.
    """
    suspected = suspects(state, end)
    for job in state.live_jobs.values():
        if _explains_crash(state, job, end):
            generation = job.crashed_start.generation if job.crashed_start is not None else 0
            had_begun = (job.job_id, generation) in (end.starts or ())
            if is_jobs_doing and (end.starts is None or (had_begun and job.job_id in suspected)):
                job = _with_lost_start_of(job, generation, end)
            job = fast_replace(job, crashed_start=None, restarts=max(job.restarts - 1, 0))
            state = with_job(state, job)
    return state


def _explains_crash(state: PoolState, job: Job, end: NodeEnd) -> bool:
    """Whether this end of a node is why a peer crashed at the newest start."""
    start = job.crashed_start
    if start is None or end.node_id == start.reporter or end.node_id not in start.nodes:
        return False
    return start.placed_at_s - state.config.timeouts.monitor_grace_s <= end.heard_s <= start.crashed_at_s


def with_lost_starts_judged(state: PoolState, started_again: str = "", returned: str = "") -> PoolState:
    """The pool after a node was lost or has joined: it may show that an earlier loss was not a job's doing.

    started_again: a node that ended with its machine, or with what had started its executor. returned: one of which
    only the executor had ended. Such an end that no other node outlived counts as one crash of the job, of which it may
    have more.
    """
    for job in state.live_jobs.values():
        lost_nodes = (*job.nodes_lost_at_start, *job.nodes_lost_in_preparation)
        if not lost_nodes and not job.unwitnessed_starts and not job.ended_starts:
            continue
        lost = [node_id for node_id in lost_nodes if node_id != started_again]
        kept = {node_id for node_id in lost if _is_outlived(state, node_id)}
        dropped = [node_id for node_id in lost if node_id not in kept]
        waiting = [node_id for node_id in job.unwitnessed_starts if node_id not in (started_again, returned)]
        waiting += [node_id for node_id in dropped if not state.nodes[node_id].alive]
        back = job.unwitnessed_starts.count(returned) if returned else 0
        crashes = back + sum(state.nodes[node_id].alive for node_id in dropped)
        judged = fast_replace(
            job,
            nodes_lost_at_start=tuple(each for each in job.nodes_lost_at_start if each in kept),
            nodes_lost_in_preparation=tuple(each for each in job.nodes_lost_in_preparation if each in kept),
            unwitnessed_starts=tuple(waiting[-MAX_UNWITNESSED:]),
            ended_starts=tuple(start for start in job.ended_starts if start[1] != started_again),
            restarts=job.restarts + crashes,
        )
        state = with_job(state, judged) if judged != job else state
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


# --- nodes ---------------------------------------------------------------------------------------------

KEEP_LEFT_S = 3_600.0
KEEP_LOST_S = 86_400.0
MAX_EARLIER_INCARNATIONS = 8  # a join is repeated within minutes, if at all

_End = tuple[float | None, float | None]  # when, and when it was announced


def node_joined(state: PoolState, event: events.NodeJoined, sequence: int) -> PoolState:
    known = state.nodes.get(event.node_id)
    if known is not None and event.incarnation == known.incarnation:
        return confirmed(state, known, event)
    if known is not None and event.incarnation in known.earlier_incarnations:
        return state
    if known is not None and known.alive:
        heard_s, by_itself = event.replaced_heard_s, _same_start(known, event)
        named = event.replaced_starts, event.replaced_preparations
        end = None if heard_s is None else NodeEnd(event.node_id, heard_s, *named)
        state = without_workers_on(state, event.node_id, end if by_itself else None)
        if end is not None:
            state = with_crash_of_lost_node(state, end, is_jobs_doing=by_itself)
        state = with_awaited_nodes(state, known, event)
    earlier = (known.incarnation, *known.earlier_incarnations) if known is not None else ()
    until_s, end_announced_s = _end_at_join(known, event)
    same_gpus = known is not None and known.gpu_type == event.gpu_type
    node = NodeState(
        node_id=event.node_id,
        incarnation=event.incarnation,
        earlier_incarnations=earlier[:MAX_EARLIER_INCARNATIONS],
        num_gpus=event.num_gpus,
        device=event.device,
        alive=True,
        since_s=event.at_s,
        sockets=event.sockets,
        slow_gpus=known.slow_gpus if known is not None and same_gpus else (),
        rack=event.rack,
        gpu_type=event.gpu_type,
        gpu_memory_bytes=event.gpu_memory_bytes,
        isolation=event.isolation,
        until_s=until_s,
        end_announced_s=end_announced_s,
        workers_secret=event.workers_secret,
        unenforced=event.unenforced,
        started_by=event.started_by,
        data_folder=event.data_folder,
        separates_gpus=event.separates_gpus,
        ended_s=None if known is None else event.replaced_heard_s if known.alive else known.ended_s,
    )
    state = without_speeds_on_node(with_nodes(state, state.nodes.set(event.node_id, node)), event.node_id)
    state = fast_replace(state, gpu_types=_gpu_types(state, event.gpu_type))
    started_again = known is not None and is_started_again(known, event)
    returned = known is not None and _same_start(known, event)
    of_node = event.node_id
    state = with_lost_starts_judged(state, of_node if started_again else "", of_node if returned else "")
    return scheduling_event(without_departed_nodes(state, event.at_s), sequence)


def _end_at_join(known: NodeState | None, event: events.NodeJoined) -> _End:
    """The end that the node names; or the one before, if its operator had announced it, it is ahead, and the node names
    no earlier one. Its executor was started again, the machine still ends.

    Of a notice the executor tells again, if it still holds.
    """
    until_s, announced_s = (None, None) if known is None else _end_without_notice(known)
    is_kept = announced_s is not None and until_s is not None and until_s > event.at_s
    if is_kept and until_s is not None and (event.until_s is None or until_s <= event.until_s):
        return until_s, announced_s
    return event.until_s, None


def _end_without_notice(node: NodeState) -> _End:
    notice = node.notice
    if notice is None:
        return node.until_s, node.end_announced_s
    return notice.otherwise_until_s, notice.otherwise_announced_s


def _gpu_types(state: PoolState, joined: str) -> tuple[str, ...]:
    """The GPU types with that of a node that joined. It becomes the first one in a pool without named types, or if no
    node, job or curve has the first type any more. What rests on one type must not count for another."""
    known = state.gpu_types
    if not joined or joined in known:
        return known
    return (*known, joined) if known and _has_first_type(state, known[0]) else (joined, *known[1:])


def _has_first_type(state: PoolState, name: str) -> bool:
    """Whether anything of the pool has the first type. Nodes that were lost may come back with it."""
    return (
        any(not node.left and node.gpu_type in ("", name) for node in state.nodes.values())
        or any(not spec_of(job).gpu_type for job in state.live_jobs.values())
        or any(curve.iterations_per_s and not type_of_profile(key) for key, curve in state.curves.items())
    )


def node_lost(state: PoolState, event: events.NodeLost, sequence: int) -> PoolState:
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or not node.alive:
        return state
    ended_s = event.at_s if event.heard_s is None else event.heard_s
    left = event.reason == "left"
    node = replace(node, alive=False, since_s=event.at_s, left=left, ended_s=ended_s, awaited=False)
    state = with_nodes(state, state.nodes.set(event.node_id, node))
    end = NodeEnd(event.node_id, ended_s, event.starts, event.preparations)
    state = without_workers_on(state, event.node_id, None if left else end)
    state = with_crash_of_lost_node(state, end, is_jobs_doing=not left)
    state = with_lost_starts_judged(state)
    return scheduling_event(without_departed_nodes(state, event.at_s), sequence)


def node_end_announced(state: PoolState, event: events.NodeEndAnnounced, sequence: int) -> PoolState:
    """The node takes jobs again until the allocator drains it for its new end."""
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or not node.alive:
        return state
    notice = node.notice
    if notice is not None:
        notice = notice._replace(otherwise_until_s=event.until_s, otherwise_announced_s=event.at_s)
    node = replace(node, until_s=event.until_s, end_announced_s=event.at_s, notice=notice, draining=False)
    return scheduling_event(with_nodes(state, state.nodes.set(event.node_id, node)), sequence)


def node_end_noticed(state: PoolState, event: events.NodeEndNoticed, sequence: int) -> PoolState:
    """If the node ends at another time now, it takes jobs again until the allocator drains it for that."""
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or not node.alive:
        return state
    if node.notice is not None and event.at_s <= node.notice.at_s:
        return state
    otherwise_s, announced_s = _end_without_notice(node)
    notice = NoticedEnd(event.until_s, event.at_s, otherwise_s, announced_s)
    until_s = min((end_s for end_s in (event.until_s, otherwise_s) if end_s is not None), default=None)
    if until_s == node.until_s:
        return with_nodes(state, state.nodes.set(event.node_id, replace(node, notice=notice)))
    node = replace(node, until_s=until_s, end_announced_s=event.at_s, notice=notice, draining=False)
    return scheduling_event(with_nodes(state, state.nodes.set(event.node_id, node)), sequence)


FAILING_SLOWDOWN = 100.0  # of a GPU that should compute nothing: what a straggler that no one waits for would have


def gpu_failing(state: PoolState, event: events.GpuFailing) -> PoolState:
    """The GPU counts as slow, of the job that holds it."""
    node, gpu = state.nodes.get(event.node_id), GpuId(event.node_id, event.gpu_index)
    if node is None or node.incarnation != event.incarnation or event.gpu_index >= node.num_gpus:
        return state
    if not is_new_failure(state, gpu, event.reason, event.at_s):
        return state
    holder = next((job for job in state.live_jobs.values() if gpu in job.gpus), None)
    slow = SlowGpu(
        gpu_index=gpu.gpu_index,
        slowdown=FAILING_SLOWDOWN,
        job_id="" if holder is None else holder.job_id,
        generation=0 if holder is None else holder.generation,
        since_s=event.at_s,
        num_virtual_nodes=0 if holder is None else holder.num_virtual_nodes,
        reason=event.reason,
    )
    others = (other for other in node.slow_gpus if other.gpu_index != gpu.gpu_index)
    node = replace(node, slow_gpus=(*others, slow))
    return fast_replace(state, nodes=state.nodes.set(node.node_id, node))


def is_new_failure(state: PoolState, gpu: GpuId, reason: str, at_s: float) -> bool:
    """Whether a report that this GPU fails adds anything: it does not count as failing, or soon will no longer."""
    known = slow_gpu(state, gpu)
    if known is None:
        return True
    since_s = at_s - known.since_s
    return since_s > (state.config.slow_gpu_s / 2 if known.reason == reason else 0.0)


def node_drain_started(state: PoolState, event: events.NodeDrainStarted) -> PoolState:
    """The allocation of the same decision already does without the node."""
    node = state.nodes.get(event.node_id)
    if node is None or node.incarnation != event.incarnation or not node.takes_jobs:
        return state
    return with_nodes(state, state.nodes.set(event.node_id, replace(node, draining=True)))


def without_departed_nodes(state: PoolState, now_s: float) -> PoolState:
    """Forget nodes that left or were lost long ago and carry no live job: some clouds use each name only once.

    A join repeated after that adds a node without heartbeats, which the monitor soon reports lost.
    """
    gone = {
        node.node_id
        for node in state.nodes.values()
        if not node.alive and now_s - node.since_s > (KEEP_LEFT_S if node.left else KEEP_LOST_S)
    }
    for job in state.live_jobs.values() if gone else ():
        gone.difference_update(job.nodes)
    nodes = state.nodes.mutate()
    for node_id in gone:
        del nodes[node_id]
        state = without_speeds_on_node(state, node_id)
    return with_nodes(state, nodes.finish()) if gone else state


def without_workers_on(state: PoolState, node_id: str, end: NodeEnd | None) -> PoolState:
    """end: of its executor, if a job may have ended it."""
    suspected = set[str]()
    if end is not None:
        state = with_ended_starts(state, end)
        suspected = suspects(state, end)
    for job in state.live_jobs.values():
        if end is not None and (end.starts is None or job.job_id in suspected):
            job = with_lost_start(state, job, end)
        if job.stopping:
            job = fast_replace(job, stopping=tuple(s for s in job.stopping if s.node_id != node_id))
        if node_id in job.nodes:
            previous_gpus = job.previous_generation.gpus if job.previous_generation is not None else ()
            lost = frozenset(gpu for gpu in (*job.gpus, *previous_gpus) if gpu.node_id == node_id)
            job = with_lost_workers(state, job, crashes=0, lost=lost)
        state = with_job(state, job)
    for job in state.ended_jobs.values():
        if any(s.node_id == node_id for s in job.stopping):
            stopping = tuple(s for s in job.stopping if s.node_id != node_id)
            ended_jobs = state.ended_jobs.set(job.job_id, fast_replace(job, stopping=stopping))
            state = fast_replace(state, ended_jobs=ended_jobs)
    return state
