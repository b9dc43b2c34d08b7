"""Numbers of GPUs of which no pre-run knows: a job tries them where nobody else has a use for the GPUs.

A pre-run ends with what the pool has, or can lend, at that time. Where there are more GPUs later, a job that trains on
as many as are known goes to the next number for a while; how fast it is there is measured while it trains, for all jobs
of its profile. Its promise is kept even if it makes no progress at all on them (docs/adr/0026).
"""
# pyright: strict

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shared.messages.changed import changed
from shared.messages.fold_jobs import holders
from shared.messages.job_state import Job, Phase
from shared.messages.pool_state import MeasuredCurve, PoolState, spec_of
from shared.scheduling.outlook import largest_level, next_level, resize_cost
from shared.scheduling.planned_pool import PlannedPool, planned_pool

TRIAL_S = 15.0  # of training there: until its speed has settled, and was told


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A job on more GPUs than are known of it, until the pool should know."""

    job_id: str
    num_gpus: int
    until_s: float


def trial_under_way(state: PoolState, now_s: float) -> Trial | None:
    """The one that was begun and has not been measured yet."""
    for job, curve in _unknown_beyond(state):
        until_s = curve.tried_at_s + _lasts_s(state, job.num_gpus)
        if job.num_gpus > max(curve.iterations_per_s) and now_s < until_s:
            return Trial(job_id=job.job_id, num_gpus=job.num_gpus, until_s=until_s)
    return None


def next_trial(
    state: PoolState, pool: PlannedPool, shares: Mapping[str, int], num_idle: int, now_s: float
) -> tuple[Trial, PlannedPool] | None:
    """A trial that takes no GPU from anybody, and the pool with the promises as they are planned beside it.

    pool: without it. shares: what was allocated; num_idle: GPUs that it leaves.
    """
    for job, curve in _unknown_beyond(state):
        num_gpus, held = next_level(state, spec_of(job)), len(job.gpus)
        is_new = curve.tried_to < num_gpus <= largest_level(state, spec_of(job))
        is_at_end = job.training and held == shares.get(job.job_id) == max(curve.iterations_per_s)
        goes_over = holders(state, job) is not None  # without a stop: no step is risked for it
        if is_new and is_at_end and goes_over and num_gpus - held <= num_idle:
            trial = Trial(job_id=job.job_id, num_gpus=num_gpus, until_s=now_s + _lasts_s(state, num_gpus))
            beside = _standing_still(state, job, curve, trial, now_s)
            if not beside.plan.late and beside.held == pool.held:
                return trial, beside
    return None


def _unknown_beyond(state: PoolState) -> Iterator[tuple[Job, MeasuredCurve]]:
    """Jobs that might be faster on more GPUs than were measured, by id."""
    curves = {key: curve for key, curve in state.curves.items() if 0 < curve.tried_to < math.inf}
    if not curves:
        return
    for job_id in sorted(state.live_jobs):
        job = state.live_jobs[job_id]
        curve = curves.get(spec_of(job).profile_key) if job.phase is Phase.ADMITTED else None
        if curve is not None and curve.iterations_per_s:
            yield job, curve


def _lasts_s(state: PoolState, num_gpus: int) -> float:
    return resize_cost(state).seconds(num_gpus) + TRIAL_S


def _standing_still(
    state: PoolState, job: Job, curve: MeasuredCurve, trial: Trial, now_s: float
) -> PlannedPool:
    """The pool as if the job had to make up for all that it could do until the trial is over and it is back again.

    So its schedule holds as much work behind the trial as it has left now, whatever becomes of it until then.
    """
    lost_s = trial.until_s - now_s + resize_cost(state).seconds(len(job.gpus))
    lost = math.ceil(lost_s * max(curve.iterations_per_s.values()))
    behind = changed(job, iteration=job.iteration - lost)
    return planned_pool(changed(state, live_jobs=state.live_jobs.set(job.job_id, behind)), now_s)
