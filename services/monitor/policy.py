"""The monitor's judgement: silence, progress, speed, risk.

Source: ElasticFlow, sections 3.2 and 4.4 (monitor and node failures); what was heard is in `model`.
"""

import math

from services.monitor.between_levels import is_in_time
from services.monitor.model import State, Watched, evolve, is_watched, observe, start
from shared.messages.commands import Command
from shared.messages.events import (
    JobAtRisk,
    JobEvent,
    JobFailed,
    JobProgressed,
    NodeLost,
    ThroughputMeasured,
)
from shared.messages.job_state import Job, Phase
from shared.messages.policy import Policy
from shared.messages.pool_state import MeasuredCurve, PoolState, spec_of
from shared.scheduling.outlook import planned_deadline_s
from shared.scheduling.planned_pool import PlannedPool, planned_pool

TELL_EVERY_S = 2.0  # progress of one job
SETTLED_S = 5.0  # a generation's speed counts after so long
SPEED_CHANGE = 0.1  # a measured speed this much off the curve corrects it
CORRECT_EVERY_S = 10.0  # the same point of a curve
LOOK_AFTER_LOSS_S = 5.0  # at what else is at risk
STANDS_STILL_S = 30.0  # without an iteration: at risk
STEPS_MISSED = 10.0  # or so many steps' time, whichever is longer

Fact = JobEvent | NodeLost


def decide(state: State, commands: tuple[Command, ...], now_s: float) -> tuple[Fact, ...]:
    """What has to be told now."""
    facts: list[Fact] = [*_lost_nodes(state, now_s)]
    progressed = False
    for job in sorted(state.pool.live_jobs.values(), key=lambda job: job.job_id):
        failed = _given_up(state, job, now_s)
        if failed is not None:
            facts.append(failed)
            continue
        watched = state.watched.get(job.job_id)
        if watched is None or watched.generation != job.training_generation:
            continue
        if job.phase is Phase.ADMITTED and _worth_telling(job, watched, now_s):
            progressed = True
            facts.append(_progress(job, watched))
            facts.extend(_correction(state.pool, job, watched, now_s))
    if progressed or _lost_a_node(state.pool, now_s):
        facts.extend(_at_risk(state.pool, now_s))
    facts.extend(_standing_still(state, now_s))
    return tuple(facts)


# --- nodes ----------------------------------------------------------------------------------------------


def _lost_nodes(state: State, now_s: float) -> list[NodeLost]:
    """Nodes that were silent for the whole timeout, while we could have heard them all the time."""
    if state.listening_since_s is None or state.deaf(now_s):
        return []
    lost: list[NodeLost] = []
    for node_id, node in sorted(state.pool.nodes.items()):
        heard = state.heard.get(node_id)
        if not node.alive or heard is None or heard.incarnation != node.incarnation:
            continue
        if now_s - max(heard.at_s, state.listening_since_s) > state.pool.config.heartbeat_timeout_s:
            lost.append(NodeLost(node_id=node_id, incarnation=node.incarnation, reason="silent", at_s=now_s))
    return lost


# --- jobs -----------------------------------------------------------------------------------------------


def _given_up(state: State, job: Job, now_s: float) -> JobFailed | None:
    """Standing still for longer than the pool tolerates is a failure. (Crashing again and again is one too: that is
    the executor's to say, which knows of what.)"""
    if not job.gpus or _still_for_s(state, job, now_s) <= state.pool.config.stall_timeout_s:
        return None
    error = _standstill_in_words(state, job, now_s)
    return JobFailed(job_id=job.job_id, generation=job.generation, error=error, at_s=now_s)


def _standstill_in_words(state: State, job: Job, now_s: float) -> str:
    still_s = _still_for_s(state, job, now_s)
    if job.training_generation is None:
        return f"it did not start to train within {still_s:.0f} s; do init_model() and init_dataset() return?"
    watched = state.watched.get(job.job_id)
    iteration = max(job.iteration, watched.report.iteration if watched is not None else 0)
    return f"no iteration ended for {still_s:.0f} s after {iteration} were done; does train() return?"


def _still_for_s(state: State, job: Job, now_s: float) -> float:
    """Seconds since the job last moved: an iteration, or at least a new generation.

    Only as far as we listened: nobody but the monitor tells of progress, so while it is away the ledger stands still
    although the jobs do not.
    """
    if state.listening_since_s is None or state.deaf(now_s):
        return 0.0
    moved_at_s = max(job.placed_at_s, job.progressed_at_s, state.listening_since_s)
    watched = state.watched.get(job.job_id)
    if watched is not None and is_watched(job, watched.generation):
        moved_at_s = max(moved_at_s, watched.moved_at_s)
    return now_s - moved_at_s


def _worth_telling(job: Job, watched: Watched, now_s: float) -> bool:
    report = watched.report
    if report.iteration <= job.iteration:
        return False
    first = job.iterations_per_s is None and report.iterations_per_s is not None
    safer = report.checkpoint_iteration > job.checkpoint_iteration
    return first or safer or now_s - job.progressed_at_s >= TELL_EVERY_S


def _progress(job: Job, watched: Watched) -> JobProgressed:
    report = watched.report
    return JobProgressed(
        job_id=job.job_id,
        generation=watched.generation,
        iteration=report.iteration,
        iterations_per_s=watched.mean_iterations_per_s,
        checkpoint_iteration=report.checkpoint_iteration,
        metrics=report.metrics,
        at_s=watched.at_s,
    )


def _correction(pool: PoolState, job: Job, watched: Watched, now_s: float) -> list[ThroughputMeasured]:
    """The point of the curve on which the job trains, if it is measurably elsewhere, or not known yet."""
    curve = pool.curves.get(spec_of(job).profile_key)
    measured, num_gpus = watched.mean_iterations_per_s, len(job.gpus)
    if curve is None or not curve.complete or not measured or not job.training:
        return []
    if now_s - watched.since_s < SETTLED_S:
        return []
    is_trial = num_gpus == curve.tried_to and num_gpus not in curve.iterations_per_s
    rate = measured if is_trial else _corrected(pool, curve, num_gpus, measured, now_s)
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


def _corrected(
    pool: PoolState, curve: MeasuredCurve, num_gpus: int, measured: float, now_s: float
) -> float | None:
    """Half-way each time: two jobs that share a profile must not pull it to and fro. Where a confidence is asked for,
    the curve stays as it is: what speeds were found is kept beside it."""
    expected = curve.iterations_per_s.get(num_gpus)
    fresh = now_s - curve.measured_at_s.get(num_gpus, 0.0) < CORRECT_EVERY_S
    if pool.config.confidence is not None or not expected or fresh:
        return None
    return (measured + expected) / 2 if abs(measured - expected) > SPEED_CHANGE * expected else None


def _at_risk(pool: PoolState, now_s: float) -> list[JobAtRisk]:
    """Promised jobs for which no schedule meets the deadline any more, at the speed that is known now."""
    planned = planned_pool(pool, now_s)
    risks: list[JobAtRisk] = []
    for row in planned.plan.late:
        job, schedule = planned.listed[row], planned.plan.table.schedule(row)
        projected_s = schedule[-1].end_s if schedule else None
        if job.deadline_s is None or job.at_risk:
            continue
        if is_in_time(job, planned.curves[row], planned_deadline_s(pool, job.deadline_s), now_s):
            continue
        if projected_s is None or projected_s > job.deadline_s:
            # all who are late have schedules beside each other: each may be promised the end of its own
            slack_s = pool.config.deadline_slack_s
            earliest_s = None if projected_s is None else float(math.ceil(projected_s + slack_s))
            risks.append(_risk(job, projected_s, job.deadline_s, now_s, earliest_s))
    return [*risks, *_without_a_place(pool, planned, now_s)]


def _without_a_place(pool: PoolState, planned: PlannedPool, now_s: float) -> list[JobAtRisk]:
    """Promised jobs that run on no number of GPUs that is left."""
    listed = {job.job_id for job in planned.listed}
    return [
        _risk(job, None, job.deadline_s, now_s)
        for job_id, job in sorted(pool.live_jobs.items())
        if job.promised and not job.at_risk and job_id not in listed and job.deadline_s is not None
    ]


def _lost_a_node(pool: PoolState, now_s: float) -> bool:
    """Lately: promises may be at risk by that, whether or not anybody progresses."""
    return any(not node.alive and now_s - node.since_s < LOOK_AFTER_LOSS_S for node in pool.nodes.values())


def _standing_still(state: State, now_s: float) -> list[JobAtRisk]:
    """Promised jobs that should move and do not."""
    risks: list[JobAtRisk] = []
    for _, job in sorted(state.pool.live_jobs.items()):
        step_s = 1.0 / job.iterations_per_s if job.iterations_per_s else 0.0
        patience_s = max(STANDS_STILL_S, STEPS_MISSED * step_s)
        if not job.promised or job.at_risk or not job.gpus or job.deadline_s is None:
            continue
        if _still_for_s(state, job, now_s) > patience_s:
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
    """The sign of listening, at each beat, is all the waking that it needs."""


POLICY: Policy[State] = Policy(
    service="monitor",
    start=start,
    pool=_pool,
    evolve=evolve,
    decide=decide,
    observe=observe,
    wake_at_s=_never,
)
