"""Resource allocation: minimum satisfactory shares first, then the greatest marginal return.

A job whose speed nobody knows is measured first (`pre_runs`). What that leaves unknown, jobs try while they train
(`trials`).
Source: ElasticFlow, section 4.2 and Algorithm 2 (shared/scheduling/allocation.py).
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from services.allocator.pre_runs import pre_runs
from services.allocator.trials import Trial, next_trial, trial_under_way
from shared.messages.commands import Command
from shared.messages.events import AllocationDecided, PlanEvent
from shared.messages.job import JobClass
from shared.messages.policy import planner
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.allocation import allocate
from shared.scheduling.outlook import planned_deadline_s
from shared.scheduling.planned_pool import PlannedPool


def decide(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
    """A new allocation if something happened that can change it, or if the planned shares change now."""
    due = state.allocation_valid_until_s is not None and now_s >= state.allocation_valid_until_s
    if not due and state.scheduling_event_sequence <= state.allocation_based_on:
        return ()
    measuring = pre_runs(state, now_s)
    if measuring.num_gpus_by_job:
        decided = _decided(state, measuring.pool, now_s)
        decided = _with_shares(decided, measuring.num_gpus_by_job, measuring.look_again_at_s)
    else:
        decided = _with_trial(state, measuring.pool, now_s)
    return (*measuring.completed, decided)


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
    if trial.num_gpus - decided.num_gpus_by_job.get(trial.job_id, 0) > _num_idle(state, decided):
        return None
    return _with_shares(decided, {trial.job_id: trial.num_gpus}, trial.until_s)


def _with_shares(
    decided: AllocationDecided, num_gpus_by_job: Mapping[str, int], until_s: float
) -> AllocationDecided:
    """With these shares too, until an instant at most."""
    valid_until_s = min(math.inf if decided.valid_until_s is None else decided.valid_until_s, until_s)
    return replace(
        decided,
        num_gpus_by_job={**decided.num_gpus_by_job, **num_gpus_by_job},
        valid_until_s=None if valid_until_s == math.inf else valid_until_s,
    )


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


POLICY = planner("allocator", decide, wake_at_s)
