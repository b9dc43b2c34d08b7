"""Pre-runs: whose speed is measured now, on how many GPUs, and when it is known.

One begins at a time, so that it is measured undisturbed: 1, 2, 4, ... GPUs, as far as the job's range goes, until more
does not help or no more may be lent. Nobody waits behind one that is slow or hangs: the next begins beside it, on what
it leaves. GPUs are taken from extras and best-effort jobs, never from a promise (docs/adr/0006).
"""
# pyright: strict

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from shared.messages.events import ProfileCompleted
from shared.messages.job import JobSpec
from shared.messages.job_state import Job
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.outlook import largest_level, next_level, profile_known, resize_cost
from shared.scheduling.planned_pool import PlannedPool, planned_pool

PATIENCE_S = 15.0  # for some dozens of steps on one number of GPUs; who takes longer is not waited for


@dataclass(frozen=True, slots=True, kw_only=True)
class PreRuns:
    """The promises on what pre-runs leave, and the GPUs of these; those that are over keep theirs until admission has
    decided, in milliseconds: nobody moves in for that.

    look_again_at_s: when the next will not wait any longer.
    """

    pool: PlannedPool
    num_gpus_by_job: Mapping[str, int]
    completed: tuple[ProfileCompleted, ...]
    look_again_at_s: float


def pre_runs(state: PoolState, now_s: float) -> PreRuns:
    """Those under way go on; a next one begins where all of them are slow, the oldest first."""
    pool = whole = planned_pool(state, now_s)

    @cache  # however many wait for them: it hangs on no job
    def without(num_gpus: int) -> PlannedPool | None:
        return _set_aside(state, whole, num_gpus, now_s)

    held, completed = dict[str, int](), list[ProfileCompleted]()
    undisturbed_until_s, look_again_at_s = -math.inf, math.inf
    for job in _in_turn(state):
        level = _next_level(state, job)
        if level and level != job.num_gpus and now_s < undisturbed_until_s:
            look_again_at_s = undisturbed_until_s
            continue
        lent = _lent(state, without, job, level, sum(held.values()))
        if lent is not None:
            pool, held[job.job_id] = lent, level
            undisturbed_until_s = max(undisturbed_until_s, _patient_until_s(state, job, level, now_s))
        elif (profile := _completed_profile(state, job, now_s)) is not None:
            completed.append(profile)
            undisturbed_until_s = math.inf
            kept = without(sum(held.values()) + job.num_gpus)
            if kept is not None and job.num_gpus:
                pool, held[job.job_id] = kept, job.num_gpus
    return PreRuns(
        pool=pool, num_gpus_by_job=held, completed=tuple(completed), look_again_at_s=look_again_at_s
    )


def _in_turn(state: PoolState) -> list[Job]:
    """One job for each profile that nobody knows, the oldest; those that are being measured first."""
    jobs = dict[str, Job]()
    for job in state.profiling_jobs:
        if not profile_known(state, spec_of(job)):
            jobs.setdefault(spec_of(job).measured_key, job)
    return sorted(jobs.values(), key=lambda job: not job.num_gpus or job.num_gpus != _next_level(state, job))


def _next_level(state: PoolState, job: Job) -> int:
    """GPUs of the next pre-run; 0 if there is nothing more to learn in this pool."""
    spec = spec_of(job)
    level = next_level(state, spec)
    return level if level <= _largest_level(state, spec) else 0


def _largest_level(state: PoolState, spec: JobSpec) -> int:
    """In its range."""
    most = largest_level(state, spec)
    return most if spec.gpu_range.most is None else min(most, spec.gpu_range.most)


def _patient_until_s(state: PoolState, job: Job, level: int, now_s: float) -> float:
    placed_at_s = job.placed_at_s if len(job.gpus) == job.num_gpus == level else now_s
    return placed_at_s + resize_cost(state).seconds(level) + PATIENCE_S


def _lent(
    state: PoolState, without: Callable[[int], PlannedPool | None], job: Job, level: int, num_held: int
) -> PlannedPool | None:
    """The promises beside a pre-run, if they can spare so many GPUs.

    What the whole pre-run may come to is set aside at once, so that other jobs make room once and not at each level.
    without: the promises on all GPUs but so many. num_held: GPUs of other pre-runs.
    """
    aside = _largest_level(state, spec_of(job)) if level else -1
    while aside >= max(level, 1):
        pool = without(num_held + aside)
        if pool is not None:
            return pool
        aside //= 2
    return None


def _set_aside(state: PoolState, whole: PlannedPool, num_gpus: int, now_s: float) -> PlannedPool | None:
    """The promises on all GPUs but so many, unless that breaks one of them or a held quote."""
    if num_gpus > state.num_gpus:  # also where a node was lost meanwhile
        return None
    pool = planned_pool(state, now_s, num_gpus=state.num_gpus - num_gpus)
    keeps_as_much = set(pool.plan.late_jobs) <= set(whole.plan.late_jobs) and pool.held == whole.held
    return pool if keeps_as_much else None


def _completed_profile(state: PoolState, job: Job, now_s: float) -> ProfileCompleted | None:
    """Of a pre-run that gets no further GPUs: no further level is worth it, or none can be lent, and one at least is
    known."""
    spec = spec_of(job)
    measured = state.curves.get(spec.profile_key)
    if measured is None or not measured.iterations_per_s or not state.num_gpus:
        return None
    rates = dict(measured.iterations_per_s)
    return ProfileCompleted(
        profile_key=spec.profile_key,
        iterations_per_s=rates,
        measured_to=max(rates) if next_level(state, spec) else None,
        at_s=now_s,
    )
