"""Resource allocation: minimum satisfactory shares first, then the greatest marginal return.

A job of unknown speed is measured first (`profiling`). Numbers of GPUs that remain unknown are measured while jobs
train (`scaling_probes`).
Source: ElasticFlow, section 4.2 and Algorithm 2 (shared/scheduling/allocation/allocation.py).
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from elasticflow.services.allocator.mixed_allocations import MixedJobs, mixed_jobs
from elasticflow.services.allocator.profiling import (
    ScalingProbe,
    next_probe,
    probe_in_progress,
    profiling_runs,
    runs_held_back,
    types_to_measure,
)
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import AllocationDecided, NodeDrainStarted, PlanEvent, ProfileCompleted
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.allocation.allocation import RowsWithoutPromise, allocate
from elasticflow.shared.scheduling.allocation.best_effort import best_effort_queue
from elasticflow.shared.scheduling.jobs.scheduler_view import planned_deadline_s
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.nodes import node_drain_started
from elasticflow.shared.state.fold.plan import with_profiling_on
from elasticflow.shared.state.fold.profiles import profile_completed
from elasticflow.shared.state.gpu_types import parts
from elasticflow.shared.state.nodes import next_drain_s, nodes_to_drain
from elasticflow.shared.state.policy import Policy, planner
from elasticflow.shared.state.pool import PoolState, spec_of

_DecidedOnType = tuple[tuple[ProfileCompleted, ...], AllocationDecided]


def decide(
    state: PoolState, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> tuple[PlanEvent, ...]:
    """A new allocation if an event can change it, if the planned shares change now, or if nodes leave soon: these are
    drained first, and the allocation does without them."""
    leaving = nodes_to_drain(state, now_s)
    due = state.allocation_valid_until_s is not None and now_s >= state.allocation_valid_until_s
    if not leaving and not due and state.scheduling_event_sequence <= state.allocation_based_on:
        return ()
    cache = PlanningCache() if cache is None else cache
    drains = tuple(NodeDrainStarted(node_id=node.node_id, incarnation=node.incarnation, at_s=now_s) for node in leaving)
    for drain in drains:
        state = node_drain_started(state, drain)
    return (*drains, *_allocated(state, now_s, cache))


def _allocated(state: PoolState, now_s: float, cache: PlanningCache) -> tuple[PlanEvent, ...]:
    """Profiles that are complete, and the allocation of all GPUs."""
    if len(state.gpu_types) <= 1:
        completed, decided = _decided_on_type(state, now_s, cache)
        return (*completed, decided)
    profiled_on = types_to_measure(state)
    typed = with_profiling_on(state, profiled_on)
    completed, by_type, held_back = list[ProfileCompleted](), dict[str, AllocationDecided](), runs_held_back(typed)
    for name, part in parts(typed).items():
        may_probe = all(decided.probes is None for decided in by_type.values())
        profiles, by_type[name] = _decided_on_type(part, now_s, cache.of_type(name), held_back, may_probe=may_probe)
        completed += profiles
    mixed = mixed_jobs(typed, by_type, now_s, partial(_replanned, now_s=now_s, cache=cache))
    return (*completed, _merged(typed, completed, mixed, profiled_on, now_s))


def _decided_on_type(
    state: PoolState, now_s: float, cache: PlanningCache, held_back: Collection[str] = (), *, may_probe: bool = True
) -> _DecidedOnType:
    """Profiles that are complete, and the allocation of the GPUs of one type. At most one job starts a probe."""
    profiling = profiling_runs(state, now_s, cache, held_back)
    if profiling.num_gpus_by_job:
        decided = _decided(state, profiling.pool, now_s)
    else:
        decided = _with_probe(state, profiling.pool, now_s, cache, may_begin=may_probe)
    decided = _with_shares(decided, profiling.num_gpus_by_job, profiling.next_at_s)
    return profiling.completed, replace(decided, lent_until_s=profiling.lent_until_s)


def _replanned(gpu_type: str, part: PoolState, *, now_s: float, cache: PlanningCache) -> AllocationDecided | None:
    """The decision on the part of one type without profiling runs; None if a promise or a reserved quote is lost."""
    pool = planned_pool(part, now_s, cache.of_type(gpu_type))
    keeps_all = not pool.plan.late and len(pool.held) == len(part.quotes_at(now_s))
    return _decided(part, pool, now_s) if keeps_all else None


def _merged(
    state: PoolState,
    completed: Iterable[ProfileCompleted],
    mixed: MixedJobs,
    profiled_on: Mapping[str, str],
    now_s: float,
) -> AllocationDecided:
    """One allocation for all types. It ends at once if a profiling run is complete here and continues on another."""
    allocations = mixed.by_type.values()
    valid_until_s = min((each.valid_until_s for each in allocations if each.valid_until_s is not None), default=None)
    for profile in completed:
        state = profile_completed(state, profile)
    if types_to_measure(state):
        valid_until_s = now_s
    return AllocationDecided(
        num_gpus_by_job={job: share for each in allocations for job, share in each.num_gpus_by_job.items()},
        valid_until_s=valid_until_s,
        planned={job: schedule for each in allocations for job, schedule in each.planned.items()},
        probes=next((each.probes for each in allocations if each.probes is not None), None),
        profiled_on=profiled_on,
        virtual_nodes_by_type=mixed.virtual_nodes,
        lent_until_s={job: until_s for each in allocations for job, until_s in each.lent_until_s.items()},
        at_s=now_s,
    )


def _decided(state: PoolState, pool: PlannedPool, now_s: float) -> AllocationDecided:
    """Algorithm 2 for all jobs of a pool."""
    queue = best_effort_queue(state, pool, now_s)
    allocation = allocate(
        pool.plan,
        RowsWithoutPromise(queue.rows, _soft_deadlines(state, pool), queue.padding, queue.shares_of),
        num_lent=pool.num_lent,
    )
    quotes_end_s = (quote.until_s for quote in pool.held)
    order_changes_s = queue.next_change_s(allocation.num_gpus_by_job, now_s)
    until_s = min((allocation.valid_until_s, order_changes_s, *quotes_end_s))
    return AllocationDecided(
        num_gpus_by_job={job_id: share for job_id, share in allocation.num_gpus_by_job.items() if share},
        valid_until_s=None if until_s == math.inf else until_s,
        planned=pool.changed_schedules(),
        at_s=now_s,
    )


def _with_probe(
    state: PoolState, pool: PlannedPool, now_s: float, cache: PlanningCache, *, may_begin: bool
) -> AllocationDecided:
    """The allocation with a scaling probe on idle GPUs, if a job can use them."""
    decided = _decided(state, pool, now_s)
    probe = probe_in_progress(state, now_s)
    if probe is not None:
        return _probing(state, decided, probe) or decided
    num_idle = _num_idle(state, decided) if may_begin else 0
    found = next_probe(state, pool, decided.num_gpus_by_job, num_idle, now_s, cache) if num_idle else None
    if found is None:
        return decided
    probe, beside = found
    probing = _probing(state, _decided(state, beside, now_s), probe)
    return decided if probing is None else replace(probing, probes=probe.job_id)


def _probing(state: PoolState, decided: AllocationDecided, probe: ScalingProbe) -> AllocationDecided | None:
    """The allocation with this probe; None if too few GPUs are idle, because no job shrinks for a probe."""
    if probe.num_gpus - decided.num_gpus_by_job.get(probe.job_id, 0) > _num_idle(state, decided):
        return None
    return _with_shares(decided, {probe.job_id: probe.num_gpus}, probe.until_s)


def _with_shares(decided: AllocationDecided, num_gpus_by_job: Mapping[str, int], until_s: float) -> AllocationDecided:
    """The allocation with these shares too, valid until an instant at most."""
    valid_until_s = min(math.inf if decided.valid_until_s is None else decided.valid_until_s, until_s)
    return replace(
        decided,
        num_gpus_by_job={**decided.num_gpus_by_job, **num_gpus_by_job},
        valid_until_s=None if valid_until_s == math.inf else valid_until_s,
    )


def _num_idle(state: PoolState, decided: AllocationDecided) -> int:
    return state.num_gpus - sum(decided.num_gpus_by_job.values())


def wake_at_s(state: PoolState) -> float | None:
    """When the planned shares change next, or a node is to be drained."""
    due_s = (state.allocation_valid_until_s, next_drain_s(state))
    return min((at_s for at_s in due_s if at_s is not None), default=None)


def _soft_deadlines(state: PoolState, pool: PlannedPool) -> dict[int, float]:
    """The rows with a soft deadline, the earliest first, and the end to plan for."""
    rows = [row for row in pool.others if spec_of(pool.listed[row]).job_class is JobClass.SOFT]
    ends_s = {row: planned_deadline_s(state, pool.listed[row].deadline_s) for row in rows}
    return dict(sorted(ends_s.items(), key=lambda end: (end[1], pool.listed[end[0]].job_id)))


def shorten(events: tuple[PlanEvent, ...]) -> tuple[PlanEvent, ...] | None:
    """The allocation without its new schedules, after the same drains; None if it has none.

    Then the recorded schedules remain, all of one plan, and the next plan keeps the feasible ones
    (`AdmissionPlan.build`).
    """
    less = tuple(replace(event, planned={}) if isinstance(event, AllocationDecided) else event for event in events)
    return None if less == events else less


POLICY = planner("allocator", decide, wake_at_s, shorten=shorten)


def with_cache(cache: PlanningCache) -> Policy[PoolState]:
    """The same policy as an instance that keeps a cache between decisions."""
    return replace(POLICY, decide=partial(decide, cache=cache))
