"""Resource allocation: minimum satisfactory shares first, then the greatest marginal return.

A pre-run (profile) takes its GPUs before extras and best-effort jobs do, and never from a promise. One runs at a
time, so that it is measured undisturbed: 1, 2, 4, ... GPUs, as far as the job's range goes, until more does not help
or no more may be lent. What that leaves unknown, jobs try while they train (`trials`).
Source: ElasticFlow, section 4.2 and Algorithm 2 (shared/scheduling/allocation.py).
"""

import math
from dataclasses import replace

from services.allocator.trials import Trial, next_trial, trial_under_way
from shared.messages.commands import Command
from shared.messages.events import AllocationDecided, PlanEvent, ProfileCompleted
from shared.messages.job import JobClass, JobSpec
from shared.messages.job_state import Job
from shared.messages.policy import planner
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.allocation import allocate
from shared.scheduling.outlook import largest_level, next_level, planned_deadline_s, profile_known
from shared.scheduling.planned_pool import PlannedPool, planned_pool


def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
    """A new allocation if something happened that can change it, or if the planned shares change now."""
    due = state.allocation_valid_until_s is not None and now_s >= state.allocation_valid_until_s
    if not due and state.scheduling_event_sequence <= state.allocation_based_on:
        return ()
    profiling = _profiling_job(state)
    pool, lent = _lend(state, profiling, now_s)
    completed = _completed_profile(state, profiling, lent, now_s)
    if completed is not None and profiling is not None:
        pool, lent = _hold(state, pool, profiling, now_s)
    if lent and profiling is not None:
        decided = _with_share(_decided(state, pool, now_s), profiling.job_id, lent)
    else:
        decided = _with_trial(state, pool, now_s)
    return (completed, decided) if completed else (decided,)


def _decided(state: PoolState, pool: PlannedPool, now_s: float) -> AllocationDecided:
    """Algorithm 2 for all jobs of a pool."""
    others, padding = _shortest_first(state, pool)
    allocation = allocate(
        pool.plan, others, soft=_soft_deadlines(state, pool), num_lent=pool.num_lent, padding=padding
    )
    quotes_over_s = (quote.until_s for quote in pool.held)
    until_s = min((allocation.valid_until_s, *quotes_over_s))
    return AllocationDecided(
        num_gpus_by_job={job_id: share for job_id, share in allocation.num_gpus_by_job.items() if share},
        valid_until_s=None if until_s == math.inf else until_s,
        planned=pool.changed_schedules(),
        at_s=now_s,
    )


def _with_trial(state: PoolState, pool: PlannedPool, now_s: float) -> AllocationDecided:
    """With a job on GPUs that are left, of which its curve knows nothing, if there is one."""
    decided = _decided(state, pool, now_s)
    trial = trial_under_way(state, now_s)
    if trial is not None:
        return _trying(state, decided, trial) or decided
    begun = next_trial(state, pool, decided.num_gpus_by_job, _num_idle(state, decided), now_s)
    if begun is None:
        return decided
    trial, beside = begun
    trying = _trying(state, _decided(state, beside, now_s), trial)
    return decided if trying is None else replace(trying, tries=trial.job_id)


def _trying(state: PoolState, decided: AllocationDecided, trial: Trial) -> AllocationDecided | None:
    """None if too few GPUs are idle: none is taken from anybody for that."""
    share, until_s = decided.num_gpus_by_job.get(trial.job_id, 0), decided.valid_until_s
    if trial.num_gpus - share > _num_idle(state, decided):
        return None
    until_s = trial.until_s if until_s is None else min(until_s, trial.until_s)
    return replace(_with_share(decided, trial.job_id, trial.num_gpus), valid_until_s=until_s)


def _with_share(decided: AllocationDecided, job_id: str, num_gpus: int) -> AllocationDecided:
    return replace(decided, num_gpus_by_job={**decided.num_gpus_by_job, job_id: num_gpus})


def _num_idle(state: PoolState, decided: AllocationDecided) -> int:
    return state.num_gpus - sum(decided.num_gpus_by_job.values())


def wake_at_s(state: PoolState) -> float | None:
    """When the planned shares change next."""
    return state.allocation_valid_until_s


def _soft_deadlines(state: PoolState, pool: PlannedPool) -> dict[int, float]:
    """The rows with a soft deadline, the earliest first, and the end to plan for."""
    rows = [row for row in pool.others if spec_of(pool.listed[row]).job_class is JobClass.SOFT]
    ends_s = {row: planned_deadline_s(state, pool.listed[row].deadline_s) for row in rows}
    return dict(sorted(ends_s.items(), key=lambda end: (end[1], pool.listed[end[0]].job_id)))


def _shortest_first(state: PoolState, pool: PlannedPool) -> tuple[list[int], list[int]]:
    """Rows without a promise, and of these apart those of padding: so the mean completion time is smallest. First come
    those of which an operator wants that they hold some GPUs at least."""
    jobs = pool.plan.table.jobs

    def order(row: int) -> tuple[bool, float, str]:
        job_id = pool.listed[row].job_id
        bound = state.bounds.get(job_id)
        is_asked_for = bound is not None and bound.min_gpus is not None
        return not is_asked_for, float(jobs.remaining_J[row] / jobs.rates_JL[row, 0]), job_id

    def is_padding(row: int) -> bool:
        return spec_of(pool.listed[row]).job_class is JobClass.PADDING

    rows = sorted(pool.others, key=order)
    return [row for row in rows if not is_padding(row)], [row for row in rows if is_padding(row)]


def _profiling_job(state: PoolState) -> Job | None:
    """The job whose pre-run is due: the oldest that waits for a curve nobody knows."""
    return next((job for job in state.profiling_jobs if not profile_known(state, spec_of(job))), None)


def _next_level(state: PoolState, job: Job) -> int:
    """GPUs of the next pre-run; 0 if there is nothing more to learn in this pool."""
    spec = spec_of(job)
    level = next_level(state, spec)
    return level if level <= _largest_level(state, spec) else 0


def _largest_level(state: PoolState, spec: JobSpec) -> int:
    """In its range."""
    most = largest_level(state, spec)
    return most if spec.gpu_range.most is None else min(most, spec.gpu_range.most)


def _lend(state: PoolState, profiling: Job | None, now_s: float) -> tuple[PlannedPool, int]:
    """The promises on what the pre-run leaves, and the GPUs that it may have: as many as break no promise.

    What the whole pre-run may come to is set aside at once, so that other jobs make room once and not at each level.
    """
    whole = planned_pool(state, now_s)
    wanted = _next_level(state, profiling) if profiling is not None else 0
    if profiling is None or not wanted:
        return whole, 0
    aside = _largest_level(state, spec_of(profiling))
    while aside >= wanted:
        pool = planned_pool(state, now_s, num_gpus=state.num_gpus - aside)
        if _keeps_as_much(pool, whole):
            return pool, wanted
        aside //= 2
    return whole, 0


def _hold(state: PoolState, whole: PlannedPool, job: Job, now_s: float) -> tuple[PlannedPool, int]:
    """Leave a job what its pre-run held until admission has decided, in milliseconds: nobody moves in for that."""
    if job.num_gpus > state.num_gpus:  # a node was lost meanwhile
        return whole, 0
    pool = planned_pool(state, now_s, num_gpus=state.num_gpus - job.num_gpus)
    return (pool, job.num_gpus) if _keeps_as_much(pool, whole) else (whole, 0)


def _keeps_as_much(pool: PlannedPool, whole: PlannedPool) -> bool:
    """Whether fewer GPUs break no promise and no held quote."""
    return set(pool.plan.late_jobs) <= set(whole.plan.late_jobs) and pool.held == whole.held


def _completed_profile(
    state: PoolState, profiling: Job | None, lent: int, now_s: float
) -> ProfileCompleted | None:
    """The pre-run is over when no further level is worth it, or none can be lent and one at least is known."""
    if profiling is None or lent or not state.num_gpus:
        return None
    profile_key = spec_of(profiling).profile_key
    measured = state.curves.get(profile_key)
    if measured is None or not measured.iterations_per_s:
        return None
    rates = dict(measured.iterations_per_s)
    measured_to = max(rates) if next_level(state, spec_of(profiling)) else None
    return ProfileCompleted(
        profile_key=profile_key, iterations_per_s=rates, measured_to=measured_to, at_s=now_s
    )


POLICY = planner("allocator", decide, wake_at_s)
