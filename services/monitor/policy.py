"""What the monitor decides: lost nodes, progress, corrected throughput, promises at risk.

Source: ElasticFlow, sections 3.2 and 4.4 (monitor and node failures).
"""

import math
from dataclasses import replace
from functools import partial

from elasticflow.services.monitor.interpolated_throughput import is_in_time
from elasticflow.services.monitor.model import (
    FenceNode,
    Progress,
    ResultsCounted,
    State,
    evolve,
    observe,
    reports_progress,
    start,
)
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import (
    JobAtRisk,
    JobEvent,
    JobFailed,
    JobProgressed,
    LoadFinished,
    LoadProgressed,
    LoadReport,
    NodeLost,
    ProfilingFailed,
    ThroughputMeasured,
)
from elasticflow.shared.messages.limits import MAX_RANGES
from elasticflow.shared.scheduling.jobs.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    PlannedTime,
    planned_deadline_s,
    promised_deadline_s,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.jobs import may_report_end
from elasticflow.shared.state.gpu_types import may_run_elsewhere, parts
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState, spec_of

REPORT_EVERY_S = 2.0  # progress of one job
LOAD_REPORT_EVERY_S = 5.0  # progress of one padding load
RANGE_REPORT_EVERY_S = 0.02  # for each range of tasks in the report
SETTLED_S = 5.0  # a generation's speed counts after so long
SPEED_CHANGE = 0.1  # a measured speed this much off the curve corrects it
CORRECT_EVERY_S = 10.0  # the same point of a curve
CHECK_AFTER_LOSS_S = 5.0  # which promises are at risk
STALLED_S = 30.0  # without an iteration: at risk
STALLED_STEPS = 10.0  # or the time of so many steps, whichever is longer

MonitorOutput = JobEvent | LoadReport | NodeLost | FenceNode


def decide(
    state: State, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> tuple[MonitorOutput, ...]:
    """The events and fences that are due now."""
    emitted: list[MonitorOutput] = [*_lost_nodes(state, now_s)]
    progressed = False
    for job in sorted(state.pool.live_jobs.values(), key=lambda job: job.job_id):
        failed = _failed_by_stall(state, job, now_s)
        if failed is not None:
            emitted.append(failed)
            continue
        progress = state.progress.get(job.job_id)
        if progress is None or progress.generation != job.training_generation:
            continue
        if job.phase is Phase.ADMITTED and _is_due(job, progress, now_s):
            progressed = True
            emitted.append(_progress(job, progress))
            emitted.extend(_correction(state.pool, job, progress, now_s))
    if progressed or _lost_a_node(state.pool, now_s):
        for gpu_type, part in parts(state.pool).items():
            emitted.extend(_at_risk(part, now_s, None if cache is None else cache.of_type(gpu_type)))
    emitted.extend(_stalled(state, now_s))
    emitted.extend(_of_loads(state, now_s))
    return tuple(emitted)


# --- padding loads --------------------------------------------------------------------------------------


def _of_loads(state: State, now_s: float) -> list[LoadReport]:
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
    """A report with many ranges is long, and the ledger keeps it for ever."""
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


def _lost_nodes(state: State, now_s: float) -> list[NodeLost | FenceNode]:
    """Fence nodes without a heartbeat for a whole timeout in which the bus was connected; fenced nodes are lost."""
    outputs: list[NodeLost | FenceNode] = []
    since_s = None if state.is_disconnected(now_s) else state.connected_since_s
    for node_id, node in sorted(state.pool.nodes.items()):
        heartbeat, incarnation = state.heartbeats.get(node_id), node.incarnation
        if not node.alive or heartbeat is None or heartbeat.incarnation != incarnation:
            continue
        if heartbeat.is_fenced:
            outputs.append(NodeLost(node_id=node_id, incarnation=incarnation, reason="silent", at_s=now_s))
        elif since_s is not None and now_s >= heartbeat.fence_due_s:
            silence_s = state.pool.config.timeouts.silence_s(heartbeat.lease_s)
            if now_s - max(heartbeat.at_s, since_s) > silence_s:
                outputs.append(FenceNode(node_id=node_id, incarnation=incarnation, revision=heartbeat.revision))
    return outputs


# --- jobs -----------------------------------------------------------------------------------------------


def _failed_by_stall(state: State, job: Job, now_s: float) -> JobFailed | ProfilingFailed | None:
    """A job without progress for longer than the pool tolerates has failed. (The executor reports repeated crashes.)"""
    if (
        not job.gpus
        or not may_report_end(job, job.generation)
        or _stalled_for_s(state, job, now_s) <= state.pool.config.stall_timeout_s
    ):
        return None
    error = _stall_error(state, job, now_s)
    gpu_type = spec_of(job).gpu_type
    if may_run_elsewhere(state.pool, job, gpu_type):
        return ProfilingFailed(
            job_id=job.job_id,
            generation=job.generation,
            gpu_type=gpu_type,
            error=error,
            progressed_at_s=job.progressed_at_s,
            at_s=now_s,
        )
    return JobFailed(
        job_id=job.job_id,
        generation=job.generation,
        error=error,
        progressed_at_s=job.progressed_at_s,
        at_s=now_s,
    )


def _stall_error(state: State, job: Job, now_s: float) -> str:
    stalled_s = _stalled_for_s(state, job, now_s)
    if job.training_generation is None:
        return f"it did not start to train within {stalled_s:.0f} s; do init_model() and init_dataset() return?"
    progress = state.progress.get(job.job_id)
    iteration = max(job.iteration, progress.report.iteration if progress is not None else 0)
    return f"no iteration ended for {stalled_s:.0f} s after {iteration} were done; does train() return?"


def _stalled_for_s(state: State, job: Job, now_s: float) -> float:
    """Seconds since the job's last iteration or placement.

    Time without a connection to the bus does not count: only the monitor reports progress, so meanwhile the ledger
    shows none although jobs train.
    """
    if state.connected_since_s is None or state.is_disconnected(now_s):
        return 0.0
    moved_at_s = max(job.placed_at_s, job.progressed_at_s, state.connected_since_s)
    progress = state.progress.get(job.job_id)
    if progress is not None and reports_progress(job, progress.generation):
        moved_at_s = max(moved_at_s, progress.moved_at_s)
    return now_s - moved_at_s


def _is_due(job: Job, progress: Progress, now_s: float) -> bool:
    report = progress.report
    if report.iteration <= job.iteration:
        return False
    first = job.iterations_per_s is None and report.iterations_per_s is not None
    safer = report.checkpoint_iteration > job.checkpoint_iteration
    return first or safer or now_s - job.progressed_at_s >= REPORT_EVERY_S


def _progress(job: Job, progress: Progress) -> JobProgressed:
    report = progress.report
    return JobProgressed(
        job_id=job.job_id,
        generation=progress.generation,
        iteration=report.iteration,
        iterations_per_s=progress.mean_iterations_per_s,
        checkpoint_iteration=report.checkpoint_iteration,
        metrics=report.metrics,
        at_s=progress.at_s,
    )


def _correction(pool: PoolState, job: Job, progress: Progress, now_s: float) -> list[ThroughputMeasured]:
    """The point of the curve at which the job trains, if its measured speed differs or was unknown.

    None while its virtual nodes are divided unequally: the curve is that of even divisions.
    """
    curve = pool.curves.get(spec_of(job).profile_key)
    measured, num_gpus = progress.mean_iterations_per_s, len(job.gpus)
    if curve is None or not curve.complete or not measured or not job.training or job.virtual_nodes_by_rank:
        return []
    if now_s - progress.since_s < SETTLED_S:
        return []
    is_probe = num_gpus == curve.probed_to and num_gpus not in curve.iterations_per_s
    rate = measured if is_probe else _corrected(pool, curve, num_gpus, measured, now_s)
    if rate is None:
        return []
    return [
        ThroughputMeasured(
            profile_key=spec_of(job).measured_key,
            num_gpus=num_gpus,
            iterations_per_s=rate,
            job_id=job.job_id,
            generation=job.generation,
            source="training",
            at_s=now_s,
        )
    ]


def _corrected(pool: PoolState, curve: MeasuredCurve, num_gpus: int, measured: float, now_s: float) -> float | None:
    """Half-way to the measured speed, so that two jobs that share a profile do not make it oscillate.

    None where the pool has a confidence: then the spread of the speeds is kept beside the curve instead.
    """
    expected = curve.iterations_per_s.get(num_gpus)
    fresh = now_s - curve.measured_at_s.get(num_gpus, 0.0) < CORRECT_EVERY_S
    if pool.config.confidence is not None or not expected or fresh:
        return None
    return (measured + expected) / 2 if abs(measured - expected) > SPEED_CHANGE * expected else None


def _at_risk(pool: PoolState, now_s: float, cache: PlanningCache | None) -> list[JobAtRisk]:
    """Promised jobs for which no schedule meets the deadline at the speed that is known now."""
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


def _lost_a_node(pool: PoolState, now_s: float) -> bool:
    """Whether a node was lost in the last seconds: promises may be at risk although no job reports progress."""
    return any(not node.alive and now_s - node.since_s < CHECK_AFTER_LOSS_S for node in pool.nodes.values())


def _stalled(state: State, now_s: float) -> list[JobAtRisk]:
    """Promised jobs that hold GPUs and make no progress."""
    risks: list[JobAtRisk] = []
    for _, job in sorted(state.pool.live_jobs.items()):
        step_s = 1.0 / job.iterations_per_s if job.iterations_per_s else 0.0
        tolerated_s = max(STALLED_S, STALLED_STEPS * step_s)
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


def _pool(state: State) -> PoolState:
    return state.pool


def _never(state: State) -> None:
    """`Connected`, noted at each heartbeat interval, wakes the policy often enough."""


POLICY: Policy[State] = Policy(
    service="monitor",
    start=start,
    pool=_pool,
    evolve=evolve,
    decide=decide,
    observe=observe,
    wake_at_s=_never,
)


def with_cache(cache: PlanningCache) -> Policy[State]:
    """The same policy as an instance that keeps a cache between decisions."""
    return replace(POLICY, decide=partial(decide, cache=cache))
