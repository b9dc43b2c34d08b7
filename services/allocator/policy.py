"""Resource allocation: minimum satisfactory shares first, then the greatest marginal return.

A job of unknown speed is measured first (`profiling`). Numbers of GPUs that remain unknown are measured while jobs
train (`scaling_probes`).
Source: ElasticFlow, section 4.2 and Algorithm 2 (shared/scheduling/allocation/allocation.py).
"""

# pyright: strict

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from elasticflow.services.allocator.profiling import (
    ScalingProbe,
    next_probe,
    probe_in_progress,
    profiling_runs,
    runs_held_back,
    types_to_measure,
)
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import AllocationDecided, NodeDrainStarted, PlanEvent, ProfileCompleted
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.allocation.allocation import RowsWithoutPromise, allocate
from elasticflow.shared.scheduling.allocation.best_effort import best_effort_queue
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import Counts, MixedSteps, mixed_steps
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import DEFAULT_LEAST_GAIN
from elasticflow.shared.scheduling.jobs.scheduler_view import planned_deadline_s, promisable_gpus, resize_cost_of
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.nodes import node_drain_started
from elasticflow.shared.state.fold.plan import with_profiling_on
from elasticflow.shared.state.fold.profiles import profile_completed
from elasticflow.shared.state.gpu_types import parts, submitted_spec
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.nodes import next_drain_s, nodes_to_drain
from elasticflow.shared.state.policy import Policy, planner
from elasticflow.shared.state.pool import PoolState, slow_gpus_at, spec_of

# --- mixed allocations --------------------------------------------------------------------------------
# GPUs that stay idle on their type join jobs of other types, where the split of their virtual nodes pays. Pure.
#
# No promise counts on them, and each type's own jobs come first: a job leaves them as soon as one of these gets them. A
# promised job takes them only if its promise is kept even if it makes no progress while they join and leave. Source:
# VirtualFlow, section 5.1.2; docs/adr/0049.

# --- How many GPUs of a type are idle, so that they may join jobs of other types -----------------------


def num_idle_on_type(part: PoolState, decided: AllocationDecided, now_s: float) -> int:
    """GPUs that no job of this type has, less the reserve for failures, those of reserved quotes, and slow ones.

    None while a job is profiled or begins a scaling probe there: its measurement must not be disturbed.
    part: the pool's part of this type. decided: its allocation.
    """
    is_measured = any(job.phase is Phase.PROFILING for job in part.live_jobs.values())
    if is_measured or decided.probes is not None:
        return 0
    quoted = sum(
        max((segment.num_gpus for segment in segments(quote.schedule)), default=0) for quote in part.quotes_at(now_s)
    )
    given = sum(decided.num_gpus_by_job.values())
    return max(promisable_gpus(part)[0] - given - quoted - len(slow_gpus_at(part, now_s)), 0)


# --- mixed allocations ---------------------------------------------------------------------------------

PAYS_BY = 2.0  # times the progress lost by joining and leaving: what a job must gain until the GPUs may be needed
MAX_CANDIDATES = 32  # the oldest, so that a decision takes no longer with more jobs

Replan = Callable[[str, PoolState], AllocationDecided | None]
"""Decides anew on one type and its part of the pool; None if that breaks a promise or a quote reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedJobs:
    """by_type: the decision on each type, with a new plan where a promised job is joined.

    virtual_nodes: of the GPUs of each mixed job, by recorded type.
    """

    by_type: Mapping[str, AllocationDecided]
    virtual_nodes: Mapping[str, Counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A job that GPUs of other types may join. step_s: with the GPUs that it has. held: those of other types.

    limits_each_type: its `max_gpus` limits the GPUs of each type, as its user asks for mixed types; else all its GPUs.
    """

    job: Job
    own: str
    num_own: int
    steps: MixedSteps
    step_s: float
    held: Mapping[str, int]
    limits_each_type: bool

    def fastest(self, idle: Mapping[str, int]) -> Counts | None:
        """The best split with GPUs that are idle on other types; None if it is not faster by the least gain."""
        counts = self.steps.fastest(self.num_own, self._joinable(idle))
        return counts if counts is not None and self.gain(counts) >= DEFAULT_LEAST_GAIN else None

    def _joinable(self, idle: Mapping[str, int]) -> dict[str, int]:
        """GPUs of other types within the limit, those of fast types first."""
        most, joinable = spec_of(self.job).gpu_range.most, dict[str, int]()
        for name in self.steps.fastest_types_first:
            num = idle.get(name, 0) + self.held.get(name, 0)
            used = 0 if self.limits_each_type else self.num_own + sum(joinable.values())
            joinable[name] = num if most is None else min(num, most - used)
        return joinable

    def gain(self, counts: Counts) -> float:
        """Steps per second over those with the present GPUs, less 1."""
        return self.step_s / self.steps.step_s(counts) - 1.0

    def num_gained(self, idle: Mapping[str, int]) -> float:
        """How many GPUs of its own type the best split is worth, if the speed were proportional to their number."""
        counts = self.fastest(idle)
        return 0.0 if counts is None else self.num_own * self.gain(counts)


def mixed_jobs(state: PoolState, by_type: Mapping[str, AllocationDecided], now_s: float, replan: Replan) -> MixedJobs:
    """Give idle GPUs to jobs of other types, one job after another, those first that gain the most.

    by_type: the decision on the jobs of each type alone. A job keeps the GPUs of other types that it has, as long as
    they are idle there and its own number of GPUs stays.
    """
    pool_parts, decided = parts(state), dict(by_type)
    idle = {name: num_idle_on_type(part, by_type[name], now_s) for name, part in pool_parts.items()}
    mixed = _kept(state, by_type, idle)
    candidates = list(_candidates(state, by_type, mixed)) if any(idle.values()) else []
    for candidate in sorted(candidates, key=lambda each: (-each.num_gained(idle), each.job.job_id)):
        counts = candidate.fastest(idle)
        if counts is None or not _pays(state, candidate, counts, decided, now_s):
            continue
        job, own = candidate.job, candidate.own
        if job.promised:
            behind = fast_replace(job, iteration=job.iteration - _num_lost(state, candidate, counts))
            later = fast_replace(pool_parts[own], live_jobs=pool_parts[own].live_jobs.set(job.job_id, behind))
            replanned = replan(own, later)
            if replanned is None or replanned.num_gpus_by_job != decided[own].num_gpus_by_job:
                continue
            pool_parts[own], decided[own] = later, replanned
        mixed[job.job_id] = counts
        for name in idle.keys() - {own}:
            idle[name] += candidate.held.get(name, 0) - len(counts.get(name, ()))
    return MixedJobs(by_type=decided, virtual_nodes=mixed)


def _kept(state: PoolState, by_type: Mapping[str, AllocationDecided], idle: dict[str, int]) -> dict[str, Counts]:
    """The mixed jobs of the last allocation whose GPUs of other types are still idle there; `idle` without these."""
    kept = dict[str, Counts]()
    for job_id, counts in sorted(state.virtual_nodes_by_type.items()):
        job = state.live_jobs.get(job_id)
        own = None if job is None else spec_of(job).gpu_type
        if job is None or own is None or job.slower_when_mixed or not counts.keys() <= by_type.keys():
            continue
        others = {name: len(each) for name, each in counts.items() if name != own}
        has_same_share = len(counts.get(own, ())) == by_type[own].num_gpus_by_job.get(job_id, 0) > 0
        if has_same_share and all(num <= idle[name] for name, num in others.items()):
            kept[job_id] = counts
            for name, num in others.items():
                idle[name] -= num
    return kept


def _candidates(
    state: PoolState, by_type: Mapping[str, AllocationDecided], mixed: Mapping[str, Counts]
) -> Iterator[_Candidate]:
    """The oldest admitted jobs whose step times are known on several types."""
    known = dict[tuple[object, ...], MixedSteps | None]()
    found = 0
    for job in sorted(state.live_jobs.values(), key=lambda job: (job.decided_sequence, job.job_id)):
        spec, own = submitted_spec(job), spec_of(job).gpu_type
        num_own = by_type[own].num_gpus_by_job.get(job.job_id, 0) if own in by_type else 0
        curve = state.curves.get(spec_of(job).profile_key)
        alone = curve.iterations_per_s.get(num_own) if curve is not None else None
        if job.phase is not Phase.ADMITTED or job.slower_when_mixed or not num_own or not alone:
            continue
        if spec.gpus_per_replica > 1:  # the GPUs of a replica are of one type
            continue
        types = (spec.gpu_type, spec.other_gpu_types, spec.gpu_memory_bytes, spec.mixed_gpu_types, own)
        key = (spec.measured_key, spec.gpu_range, *types)
        if key not in known:
            known[key] = mixed_steps(state, spec, own)
        steps = known[key]
        if steps is None:
            continue
        present = mixed.get(job.job_id)
        yield _Candidate(
            job=job,
            own=own,
            num_own=num_own,
            steps=steps,
            step_s=1.0 / alone if present is None else steps.step_s(present),
            limits_each_type=spec.mixed_gpu_types and job.job_id not in state.gpu_limits,
            held={} if present is None else {name: len(each) for name, each in present.items() if name != own},
        )
        found += 1
        if found == MAX_CANDIDATES:
            return


def _pays(
    state: PoolState,
    candidate: _Candidate,
    counts: Counts,
    by_type: Mapping[str, AllocationDecided],
    now_s: float,
) -> bool:
    """Whether the job gains enough before it ends and before the shares on these other types change by plan."""
    left = max(spec_of(candidate.job).max_iterations - candidate.job.iteration, 0)
    changes_s = (by_type[name].valid_until_s for name in counts if name != candidate.own)
    until_s = min((at_s for at_s in changes_s if at_s is not None), default=math.inf)
    gains_for_s = min(left * candidate.steps.step_s(counts), until_s - now_s)
    return candidate.gain(counts) * gains_for_s >= PAYS_BY * _stops_s(state, candidate, counts)


def _stops_s(state: PoolState, candidate: _Candidate, counts: Counts) -> float:
    """Seconds without progress while the GPUs of other types join, and while they leave."""
    cost = resize_cost_of(state, spec_of(candidate.job))
    return cost.seconds(sum(map(len, counts.values()))) + cost.seconds(candidate.num_own)


def _num_lost(state: PoolState, candidate: _Candidate, counts: Counts) -> int:
    """Iterations of its own GPUs in that time."""
    return math.ceil(_stops_s(state, candidate, counts) / candidate.step_s)


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
