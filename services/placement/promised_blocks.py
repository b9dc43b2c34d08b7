"""The claim of a promised job to a whole buddy block, and what it may cost other jobs to make room for it. Pure.

A promise counts on the speed of the worst block of each size, and its schedule has room for migrations (docs/adr/0107).
"""

# pyright: strict

import math
from collections.abc import Callable, Sequence

from elasticflow.services.placement.due_jobs import is_switching_undisturbed
from elasticflow.shared.messages.events import PlacedJob, PlacementDecided
from elasticflow.shared.messages.gpus import GpuId, segments
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool, profiling_loans
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    KnownCurves,
    held_num_gpus,
    iteration_at,
    known_curve,
    migration_cost_of,
    resize_cost_of,
    stalled_until_s,
)
from elasticflow.shared.scheduling.placement.placement import MigrationBenefit
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.ledger_fold import apply
from elasticflow.shared.state.gpu_types import parts
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of

PROFILING_S = 60.0  # of all its GPUs, that a profiling run which begins anew counts as
BROKEN_S = 3_600.0  # as much for a job that would miss a deadline, or has missed it


def has_claim(state: PoolState, job: Job) -> bool:
    """Whether the promise to a job counts on a whole block."""
    return job.promised and state.config.migration_budget > 0


def displacement_gpu_seconds(
    state: PoolState,
    job: Job,
    benefit: Callable[[str], MigrationBenefit],
    now_s: float,
    curves: KnownCurves,
    *,
    replans: bool = False,
) -> float:
    """The GPU-seconds that a job loses if it leaves its GPUs for another job's claim; inf if its promise would break.

    Survivors of a loss, workers that switch, and scripts with unsaved work stay where they are. replans: a job whose
    schedule has no room may move, as the last choice, because another plan can keep its promise.
    """
    if job.reserved_gpus or job.broken or job.has_outdated_spec or is_switching_undisturbed(job, now_s):
        return math.inf
    if not job.promised:
        seconds = PROFILING_S if job.phase is Phase.PROFILING else min(benefit(job.job_id).stop_s, BROKEN_S)
        return seconds * len(job.gpus)
    if job.restarts_to_resize or (job.pinned and not replans):
        return math.inf
    stop_s = migration_cost_of(state, spec_of(job)).seconds(job.num_gpus)
    curve = known_curve(state, spec_of(job), job.speed, curves)
    if curve is None or not job.planned_share:
        return BROKEN_S * len(job.gpus)  # its promise is broken, and keeps no other one from being kept
    if _spare_iterations(state, job, curve, now_s) < stop_s * _planned_rate(job, curve, now_s):
        return BROKEN_S * len(job.gpus) if replans else math.inf
    return stop_s * len(job.gpus)


def _planned_rate(job: Job, curve: ScalingCurve, now_s: float) -> float:
    """Iterations/s that its schedule counts on now."""
    held = (curve.throughput(n) for start_s, end_s, n in segments(job.planned_share) if start_s <= now_s < end_s)
    return next(held, 0.0)


def _spare_iterations(state: PoolState, job: Job, curve: ScalingCurve, now_s: float) -> float:
    """The iterations that its schedule has room for beyond those that are left."""
    cost = resize_cost_of(state, spec_of(job))
    held, ready_s, previous_end_s, room = (
        held_num_gpus(job),
        stalled_until_s(job, cost, migration_cost_of(state, spec_of(job))),
        now_s,
        0.0,
    )
    for start_s, end_s, num_gpus in segments(job.planned_share):
        if end_s <= now_s:
            continue
        begins_s = max(start_s, now_s)
        if num_gpus != held or begins_s > previous_end_s:
            ready_s = begins_s + cost.seconds(num_gpus)
        room += curve.throughput(num_gpus) * max(end_s - max(begins_s, ready_s), 0.0)
        held, previous_end_s = num_gpus, end_s
    done = iteration_at(job, curve, now_s, state.config.progress_timeout_s)
    return room - (spec_of(job).max_iterations - done)


def keeps_promises(state: PoolState, decided: Sequence[PlacementDecided], now_s: float, cache: PlanningCache) -> bool:
    """Whether a plan of the pool after a decision keeps all promises that one before it keeps."""
    before, after = parts(state), state
    for event in decided:
        after = apply(after, event, after.sequence + 1)
    for gpu_type, part in parts(after).items():
        planned = planned_pool(part, now_s, cache.of_type(gpu_type), loans=profiling_loans(part, now_s))
        if planned.plan.overcommitted:
            return False
        if late := set(planned.plan.late_jobs):
            loans = profiling_loans(before[gpu_type], now_s)
            if not late.issubset(planned_pool(before[gpu_type], now_s, loans=loans).plan.late_jobs):
                return False
    return True


# --- turns ---------------------------------------------------------------------------------------------


def in_turns(
    state: PoolState, placed: Sequence[PlacedJob], migrated: frozenset[str], now_s: float
) -> tuple[PlacementDecided, ...]:
    """The placements as one decision after the other, so that running workers need not stop.

    A job that leaves GPUs to another job of the same decision stops (`fold/plan.py`). So jobs that migrate to free GPUs
    come first, then those that take what these leave, and so on.
    """
    if not placed:
        return ()
    turns, waiting = list[list[PlacedJob]](), list(placed)
    while state.config.stop_free and (ready := _to_free_gpus(state, waiting, migrated)):
        turns.append(ready)
        waiting = [each for each in waiting if each not in ready]
    if waiting:
        turns.append(waiting)
    return tuple(
        PlacementDecided(
            placements=tuple(together),
            migrated=tuple(sorted(each.job_id for each in together if each.job_id in migrated)),
            at_s=now_s,
        )
        for together in turns
    )


def _to_free_gpus(state: PoolState, waiting: Sequence[PlacedJob], migrated: frozenset[str]) -> list[PlacedJob]:
    """The migrations among these placements that take no GPU which another one of them leaves."""
    gpus_by_job = {each.job_id: set(state.live_jobs[each.job_id].gpus) for each in waiting}
    held = set[GpuId]().union(*gpus_by_job.values())
    moves = (each for each in waiting if each.job_id in migrated)
    return [each for each in moves if (held - gpus_by_job[each.job_id]).isdisjoint(each.gpus)]
