"""What the monitor decides: lost nodes, progress, corrected throughput, promises at risk.

Source: ElasticFlow, sections 3.2 and 4.4 (monitor and node failures).
"""

# pyright: strict

import math
from bisect import bisect_left
from dataclasses import replace
from functools import partial

from elasticflow.services.monitor.model import (
    FenceNode,
    MonitorState,
    ResultsCounted,
    evolve,
    observe,
    reports_progress,
    start,
)
from elasticflow.services.monitor.progress import corrections, is_due, is_outdated, progress_of
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import (
    JobAtRisk,
    JobEvent,
    JobFailed,
    LoadFinished,
    LoadProgressed,
    LoadReport,
    NodeLost,
    ProfilingFailed,
)
from elasticflow.shared.messages.limits import MAX_RANGES
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    own_start_s,
    planned_deadline_s,
    promised_deadline_s,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.jobs import may_report_end
from elasticflow.shared.state.gpu_types import failure_on_type, parts
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.nodes import live_starts
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState, spec_of

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
                preparations=live_starts(state.pool, heartbeat.preparations) or (),
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


# --- risks --------------------------------------------------------------------------------------------
# Promises at risk, and jobs that have failed because they make no progress. Pure.
#
# Source: ElasticFlow, sections 3.2 and 4.4 (monitor and node failures).

# --- interpolated throughput ---------------------------------------------------------------------------
# Jobs on a number of GPUs between the levels of their curve: survivors of a loss train on any number (docs/adr/0025).
#
# Plans use only the levels of a scaling curve, and count on no progress between them. Whether such a job is late is
# decided here, from its interpolated or reported speed.


def is_in_time(job: Job, curve: ScalingCurve, deadline_s: float, now_s: float) -> bool:
    """Whether the job ends by then on its present GPUs, if their number is no level of its curve.

    deadline_s: planned. The speed is the reported one, if that is less than the interpolated one.
    """
    num_gpus = _num_training(job)
    if num_gpus in curve.rate_by_num_gpus:
        return False  # the plan decides
    rate = interpolated_throughput(curve, num_gpus)
    if job.training and job.iterations_per_s is not None:
        rate = min(rate, job.iterations_per_s)
    left = spec_of(job).max_iterations - job.iteration
    return rate > 0 and now_s + left / rate <= deadline_s


def interpolated_throughput(curve: ScalingCurve, num_gpus: int) -> float:
    """Iterations/s, linear between two levels; 0 below the first level, constant above the last."""
    above = bisect_left(curve.num_gpus_L, num_gpus)
    if above == len(curve.num_gpus_L):
        return curve.iterations_per_s_L[-1]
    rate = curve.iterations_per_s_L[above]
    if curve.num_gpus_L[above] == num_gpus:
        return rate
    if above == 0:
        return 0.0
    low, high = curve.num_gpus_L[above - 1], curve.num_gpus_L[above]
    slower = curve.iterations_per_s_L[above - 1]
    return slower + (rate - slower) * (num_gpus - low) / (high - low)


def _num_training(job: Job) -> int:
    """GPUs of its own type whose workers train: the previous generation's while joining workers prepare; 0 if none
    trains."""
    if job.training_generation is None:
        return 0
    before = job.previous_generation
    return len(job.own_gpus) if before is None else len(before.gpus) - before.num_added_gpus


# --- risks ---------------------------------------------------------------------------------------------

CHECK_AFTER_LOSS_S = 5.0  # which promises are at risk
STALLED_S = 30.0  # without an iteration: at risk
STALLED_STEPS = 10.0  # or the time of so many steps, whichever is longer


def failed_by_stall(state: MonitorState, job: Job, now_s: float) -> JobFailed | ProfilingFailed | None:
    """A job without progress for longer than it may be has failed. (The executor reports repeated crashes.)"""
    if not job.gpus or not may_report_end(job, job.generation):
        return None
    if _stalled_for_s(state, job, now_s) <= _tolerated_s(state.pool, job):
        return None
    failed = JobFailed(
        job_id=job.job_id,
        generation=job.generation,
        error=_stall_error(state, job, now_s),
        progressed_at_s=job.progressed_at_s,
        iteration=_known_iteration(state, job),
        at_s=now_s,
    )
    return failure_on_type(state.pool, job, spec_of(job).gpu_type, failed)


def _tolerated_s(pool: PoolState, job: Job) -> float:
    """Until its workers train, its start_timeout_s counts; later its stall_timeout_s. Survivors of a loss may wait for
    a start and then take a step."""
    timeouts = pool.config.timeouts_of(spec_of(job))
    if job.training_generation is not None:
        return timeouts.stall_timeout_s
    if job.previous_generation is not None:
        return max(timeouts.stall_timeout_s, timeouts.longest_start_s)
    return timeouts.longest_start_s


def _stall_error(state: MonitorState, job: Job, now_s: float) -> str:
    stalled_s = _stalled_for_s(state, job, now_s)
    if job.training_generation is None:
        within = f"it did not start to train within {stalled_s:.0f} s"
        asked = f"{within}; do init_model() and init_dataset() return?"
        what = f"{within}: a worker was {job.start_phases[-1]}." if job.start_phases else asked
        option = "--start-timeout"
    else:
        done = _known_iteration(state, job)
        what = f"no iteration ended for {stalled_s:.0f} s after {done} were done; does train() return?"
        option = "--stall-timeout"
    most_s = state.pool.config.longest_job_timeout_s
    longer = f"if it needs longer, submit it with {option}, of up to {most_s:g} s"
    return f"{what} `eflow logs {job.job_id}` shows where its workers were; {longer}"


def _known_iteration(state: MonitorState, job: Job) -> int:
    """The iteration of the ledger, or of a newer report."""
    progress = state.progress.get(job.job_id)
    return max(job.iteration, progress.report.iteration if progress is not None else 0)


def _stalled_for_s(state: MonitorState, job: Job, now_s: float) -> float:
    """Seconds since the job's last iteration or placement, or since a node prepared its start.

    Time without a connection to the bus does not count: only the monitor reports progress, so meanwhile the ledger
    shows none although jobs train.
    """
    if state.connected_since_s is None or state.is_disconnected(now_s):
        return 0.0
    moved_at_s = max(job.placed_at_s, job.progressed_at_s, state.connected_since_s)
    if job.training_generation is None:  # else it trains while nodes prepare joining workers
        prepared_at_s = state.prepared_at_s.get(job.job_id, 0.0)
        moved_at_s = max(moved_at_s, min(prepared_at_s, job.placed_at_s + state.pool.config.prepare_timeout_s))
    progress = state.progress.get(job.job_id)
    if progress is not None and reports_progress(job, progress.generation):
        moved_at_s = max(moved_at_s, progress.moved_at_s)
    return now_s - moved_at_s


def at_risk(pool: PoolState, now_s: float, cache: PlanningCache | None) -> list[JobAtRisk]:
    """Promised jobs for which no schedule meets the deadline at the speed known now, less the pool's margin."""
    planned = planned_pool(pool, now_s, cache)
    risks: list[JobAtRisk] = []
    for row in planned.plan.late:
        job, schedule = planned.listed[row], planned.plan.table.schedule(row)
        projected_s = schedule[-1].end_s if schedule else None
        if job.deadline_s is None or job.at_risk:
            continue
        if is_in_time(job, planned.curves[row], planned_deadline_s(pool, job.deadline_s), now_s):
            continue
        if projected_s is None or projected_s > job.deadline_s:
            # The schedules of late jobs fit beside each other, so each can be promised the end of its own.
            earliest_s = None
            if projected_s is not None:
                earliest_s = float(math.ceil(promised_deadline_s(pool, PlannedTime(projected_s))))
            risks.append(_risk(job, projected_s, job.deadline_s, now_s, earliest_s))
    return [*risks, *_unrunnable(pool, planned, now_s)]


def _unrunnable(pool: PoolState, planned: PlannedPool, now_s: float) -> list[JobAtRisk]:
    """Promised jobs that run on no number of GPUs that the pool has."""
    listed = {job.job_id for job in planned.listed}
    return [
        _risk(job, None, job.deadline_s, now_s)
        for job_id, job in sorted(pool.live_jobs.items())
        if job.promised and not job.at_risk and job_id not in listed and job.deadline_s is not None
    ]


def lost_a_node(pool: PoolState, now_s: float) -> bool:
    """Whether a node was lost in the last seconds, came back where it may have another GPU type than before, or its end
    was announced or moved: promises may be at risk although no job reports progress."""
    may_change_type = len(pool.gpu_types) > 1
    return any(
        (
            now_s - node.since_s < CHECK_AFTER_LOSS_S
            and (not node.alive or (may_change_type and bool(node.earlier_incarnations)))
        )
        or (node.end_announced_s is not None and now_s - node.end_announced_s < CHECK_AFTER_LOSS_S)
        for node in pool.nodes.values()
    )


def prepares_promises(state: MonitorState, now_s: float) -> bool:
    """Whether a node prepares the start of a promised job: it may become late, although nothing of it is reported."""
    grace_s = state.pool.config.timeouts.monitor_grace_s
    return any(
        now_s - at_s <= grace_s and state.pool.live_jobs[job_id].promised
        for job_id, at_s in state.prepared_at_s.items()
    )


def stalled(state: MonitorState, now_s: float) -> list[JobAtRisk]:
    """Promised jobs that hold GPUs and make no progress."""
    risks: list[JobAtRisk] = []
    for _, job in sorted(state.pool.live_jobs.items()):
        step_s = 1.0 / job.iterations_per_s if job.iterations_per_s else 0.0
        start_s = own_start_s(state.pool, spec_of(job)) if job.training_generation is None else 0.0
        tolerated_s = max(STALLED_S, STALLED_STEPS * step_s, start_s)
        if not job.promised or job.at_risk or not job.gpus or job.deadline_s is None:
            continue
        if _stalled_for_s(state, job, now_s) > tolerated_s:
            risks.append(_risk(job, None, job.deadline_s, now_s))
    return risks


def _risk(
    job: Job, projected_s: float | None, deadline_s: float, now_s: float, earliest_s: float | None = None
) -> JobAtRisk:
    return JobAtRisk(
        job_id=job.job_id,
        generation=job.generation,
        projected_finish_s=projected_s,
        deadline_s=deadline_s,
        earliest_deadline_s=earliest_s,
        at_s=now_s,
    )
