"""Scaling probes: a job trains on more GPUs than its profile knows, where no other job can use them.

A profiling run ends at the number of GPUs that the pool has, or can lend, at that time. When the pool has more GPUs
later, a job that trains on the most known GPUs grows to the next number for a while. Its speed there is measured
while it trains, for all jobs of its profile. Its promise is kept even if it makes no progress during the probe
(docs/adr/0026).
"""
# pyright: strict

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.scheduling.jobs.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.jobs.scheduler_view import next_level, resize_cost
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.jobs import state_holders
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState, largest_level, spec_of

PROBE_S = 15.0  # of training there, until the speed is steady and reported


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingProbe:
    """A job on more GPUs than its profile knows, until its speed there should be known."""

    job_id: str
    num_gpus: int
    until_s: float


def probe_in_progress(state: PoolState, now_s: float) -> ScalingProbe | None:
    """The probe that has begun and is not measured yet."""
    for job, curve in _unknown_beyond(state):
        until_s = curve.probed_at_s + _lasts_s(state, job.num_gpus)
        if job.num_gpus > max(curve.iterations_per_s) and now_s < until_s:
            return ScalingProbe(job_id=job.job_id, num_gpus=job.num_gpus, until_s=until_s)
    return None


def next_probe(
    state: PoolState,
    pool: PlannedPool,
    shares: Mapping[str, int],
    num_idle: int,
    now_s: float,
    cache: PlanningCache | None = None,
) -> tuple[ScalingProbe, PlannedPool] | None:
    """A probe on idle GPUs, and the pool with the promises as they are planned beside it; None if no job qualifies.

    pool: without the probe. shares: the allocation; num_idle: GPUs that it leaves.
    """
    for job, curve in _unknown_beyond(state):
        num_gpus, held = next_level(state, spec_of(job)), len(job.own_gpus)
        is_new = curve.probed_to < num_gpus <= largest_level(state, spec_of(job))
        is_at_most_known = job.training and held == shares.get(job.job_id) == max(curve.iterations_per_s)
        # workers resize without stopping, so no step is at risk
        switches = state_holders(state, job) is not None and not job.num_added_gpus
        if is_new and is_at_most_known and switches and num_gpus - held <= num_idle:
            probe = ScalingProbe(job_id=job.job_id, num_gpus=num_gpus, until_s=now_s + _lasts_s(state, num_gpus))
            beside = _planned_beside(state, job, curve, probe, now_s, cache)
            if not beside.plan.late and beside.held == pool.held:
                return probe, beside
    return None


def _unknown_beyond(state: PoolState) -> Iterator[tuple[Job, MeasuredCurve]]:
    """Jobs that might be faster on more GPUs than were measured, by id."""
    curves = {key: curve for key, curve in state.curves.items() if 0 < curve.probed_to < math.inf}
    if not curves:
        return
    for job_id in sorted(state.live_jobs):
        job = state.live_jobs[job_id]
        curve = curves.get(spec_of(job).profile_key) if job.phase is Phase.ADMITTED else None
        if curve is not None and curve.iterations_per_s:
            yield job, curve


def _lasts_s(state: PoolState, num_gpus: int) -> float:
    return resize_cost(state).seconds(num_gpus) + PROBE_S


def _planned_beside(
    state: PoolState,
    job: Job,
    curve: MeasuredCurve,
    probe: ScalingProbe,
    now_s: float,
    cache: PlanningCache | None,
) -> PlannedPool:
    """The pool as if the job made no progress until the probe is over and the job is back on its known GPUs.

    So its schedule after the probe holds all the work that is left now.
    """
    lost_s = probe.until_s - now_s + resize_cost(state).seconds(len(job.gpus))
    lost = math.ceil(lost_s * max(curve.iterations_per_s.values()))
    behind = fast_replace(job, iteration=job.iteration - lost)
    return planned_pool(fast_replace(state, live_jobs=state.live_jobs.set(job.job_id, behind)), now_s, cache)
