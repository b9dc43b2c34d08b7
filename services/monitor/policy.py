"""What the monitor decides: lost nodes, progress, corrected throughput, promises at risk.

Source: ElasticFlow, sections 3.2 and 4.4 (monitor and node failures).
"""

from dataclasses import replace
from functools import partial

from elasticflow.services.monitor.model import FenceNode, MonitorState, ResultsCounted, evolve, observe, start
from elasticflow.services.monitor.progress import corrections, is_due, is_outdated, progress_of
from elasticflow.services.monitor.risks import at_risk, failed_by_stall, lost_a_node, prepares_promises, stalled
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import (
    JobEvent,
    LoadFinished,
    LoadProgressed,
    LoadReport,
    NodeLost,
)
from elasticflow.shared.messages.limits import MAX_RANGES
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.gpu_types import parts
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.nodes import live_starts
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState

LOAD_REPORT_EVERY_S = 5.0  # progress of one padding load
RANGE_REPORT_EVERY_S = 0.02  # for each range of tasks in the report

MonitorOutput = JobEvent | LoadReport | NodeLost | FenceNode


def decide(
    state: MonitorState, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> tuple[MonitorOutput, ...]:
    """The events and fences that are due now."""
    emitted: list[MonitorOutput] = [*_lost_nodes(state, now_s)]
    progressed, timeout_s = False, state.pool.config.progress_timeout_s
    for job in sorted(state.pool.live_jobs.values(), key=lambda job: job.job_id):
        failed = failed_by_stall(state, job, now_s)
        if failed is not None:
            emitted.append(failed)
            continue
        progress = state.progress.get(job.job_id)
        if progress is None or progress.generation != job.training_generation:
            continue
        if job.phase is Phase.ADMITTED and is_outdated(job, progress, now_s):
            progressed = True
            if is_due(job, progress, now_s, timeout_s):
                emitted.append(progress_of(job, progress))
                emitted.extend(corrections(state, job, progress, now_s))
    if progressed or lost_a_node(state.pool, now_s) or prepares_promises(state, now_s):
        for gpu_type, part in parts(state.pool).items():
            emitted.extend(at_risk(part, now_s, None if cache is None else cache.of_type(gpu_type)))
    emitted.extend(stalled(state, now_s))
    emitted.extend(_of_loads(state, now_s))
    return tuple(emitted)


# --- padding loads --------------------------------------------------------------------------------------


def _of_loads(state: MonitorState, now_s: float) -> list[LoadReport]:
    """What was counted of live loads since the last report; the end of those that have a result of each task."""
    reports = list[LoadReport]()
    for load_id, load in sorted(state.pool.loads.items()):
        if not load.live:
            continue
        count = state.counts.get(load_id, ResultsCounted(load_id=load_id))
        if load.num_tasks is not None and count.num_results >= load.num_tasks:
            reports.append(LoadFinished(load_id=load_id, num_results=count.num_results, at_s=now_s))
        elif count.num_results > load.num_results and now_s - load.progressed_at_s >= _report_every_s(count):
            reports.append(_load_progress(count, now_s))
    return reports


def _report_every_s(count: ResultsCounted) -> float:
    """A report with many ranges is long, and the ledger keeps it forever."""
    return max(LOAD_REPORT_EVERY_S, RANGE_REPORT_EVERY_S * len(count.counted))


def _load_progress(count: ResultsCounted, now_s: float) -> LoadProgressed:
    fits = len(count.counted) <= MAX_RANGES
    return LoadProgressed(
        load_id=count.load_id,
        num_results=count.num_results,
        counted=count.counted if fits else (),
        counted_to=count.counted_to if fits else 0,
        at_s=now_s,
    )


# --- nodes ----------------------------------------------------------------------------------------------


def _lost_nodes(state: MonitorState, now_s: float) -> list[NodeLost | FenceNode]:
    """Fence nodes without a heartbeat for a whole timeout in which the bus was connected; fenced nodes are lost."""
    outputs: list[NodeLost | FenceNode] = []
    since_s = None if state.is_disconnected(now_s) else state.connected_since_s
    for node_id, node in sorted(state.pool.nodes.items()):
        heartbeat, incarnation = state.heartbeats.get(node_id), node.incarnation
        if not node.alive or heartbeat is None or heartbeat.incarnation != incarnation:
            continue
        if heartbeat.is_fenced:
            heard_s = heartbeat.at_s if heartbeat.revision else 0.0
            lost = NodeLost(
                node_id=node_id,
                incarnation=incarnation,
                reason="silent",
                at_s=now_s,
                heard_s=heard_s,
                starts=live_starts(state.pool, heartbeat.starts),
            )
            outputs.append(lost)
        elif since_s is not None and now_s >= heartbeat.fence_due_s:
            silence_s = state.pool.config.timeouts.silence_s(heartbeat.lease_s)
            if now_s - max(heartbeat.at_s, since_s) > silence_s:
                outputs.append(FenceNode(node_id=node_id, incarnation=incarnation, revision=heartbeat.revision))
    return outputs


def _pool(state: MonitorState) -> PoolState:
    return state.pool


def _never(state: MonitorState) -> None:
    """`Connected`, noted at each heartbeat interval, wakes the policy often enough."""


POLICY: Policy[MonitorState] = Policy(
    service="monitor",
    start=start,
    pool=_pool,
    evolve=evolve,
    decide=decide,
    observe=observe,
    wake_at_s=_never,
)


def with_cache(cache: PlanningCache) -> Policy[MonitorState]:
    """The same policy as an instance that keeps a cache between decisions."""
    return replace(POLICY, decide=partial(decide, cache=cache))
