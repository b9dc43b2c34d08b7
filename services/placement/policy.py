"""Placement: from numbers of GPUs to GPUs.

Promises count on whole buddy blocks and allow for migrations (docs/adr/0107): promised jobs may move for each other's
blocks, a job without a promise where it must, or where its migration benefit exceeds the cost.
Source: ElasticFlow, section 4.3 (shared/scheduling/placement/placement.py).
"""

# pyright: strict

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as remember
from functools import partial
from itertools import islice
from math import inf

from elasticflow.services.placement.added_gpus import added_gpus, kept_added_gpus, without_other_types
from elasticflow.services.placement.due_jobs import (
    MAX_SWITCH_S,
    allocated_shares,
    counted_gpus,
    due_jobs,
    exceeds_pool,
    given_up_gpus,
    has_gangs,
    is_switching_undisturbed,
    mixed_generation,
    new_generation,
    relieved_until_s,
    remaining_gpus,
    shows_lost_gpus,
    shrunk_to_survivors,
    waits_for_replicas,
)
from elasticflow.services.placement.stragglers import next_change_s, without_delay
from elasticflow.shared.frozen_values import fast_replace, memoize_recent
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import PlacedJob, PlacementDecided
from elasticflow.shared.messages.gpus import GpuId, segments
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool, profiling_loans
from elasticflow.shared.scheduling.jobs.promised_levels import claimed_levels, promised_at_s, promised_levels
from elasticflow.shared.scheduling.jobs.scaling_curve import PlacementCurves, ScalingCurve, placement_curves
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    KnownCurves,
    held_num_gpus,
    iteration_at,
    known_curve,
    migration_cost_of,
    resize_cost_of,
    stalled_until_s,
)
from elasticflow.shared.scheduling.placement.buddy_blocks import Blocks, log2
from elasticflow.shared.scheduling.placement.placement import (
    MigrationBenefit,
    MigrationRules,
    Placement,
    any_spread,
    any_unmet_claim,
    place,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.jobs import with_job
from elasticflow.shared.state.fold.ledger_fold import apply
from elasticflow.shared.state.gpu_types import parts
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.nodes import ending_nodes, without_awaited_nodes
from elasticflow.shared.state.policy import Policy, planner
from elasticflow.shared.state.pool import PoolState, slow_gpus_at, spec_of
from elasticflow.shared.state.topology import CLUSTER, Level, pool_topology

LONGEST_STAY_S = 600.0  # no job is expected to keep its GPUs for longer, because the pool changes


def decide(
    state: PoolState, commands: tuple[Command, ...], now_s: float, cache: PlanningCache | None = None
) -> tuple[PlacementDecided, ...]:
    """New generations for jobs whose workers wait after a loss; else for jobs whose share differs from the GPUs they
    hold, whose workers broke, or that benefit from a migration; else for one job that slow GPUs delay."""
    cache = PlanningCache() if cache is None else cache
    state = without_awaited_nodes(state)
    return (
        # survivors keep GPUs that they hold, so no other decision is needed, not even a new allocation
        _decided(shrunk_to_survivors(state), now_s)
        or _decided(without_other_types(state), now_s)
        or _placed(state, now_s, cache)
        or _replaced(state, now_s)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a decision places. due: of all types. kept: GPUs that stay with jobs of other types, by job.

    replans: jobs whose schedules have no room may leave their GPUs for a claim too. restarts: so may scripts that
    restart, for replicas of several GPUs.
    """

    shares: Mapping[str, int]
    due: set[str]
    kept: Mapping[str, tuple[GpuId, ...]]
    now_s: float
    replans: bool = False
    restarts: bool = False


def _placed(state: PoolState, now_s: float, cache: PlanningCache) -> tuple[PlacementDecided, ...]:
    """The placements that meet all claims, if there are any.

    Jobs whose schedules have no room for a migration move only where another plan keeps all promises.
    """
    shares = allocated_shares(state)
    if exceeds_pool(state, shares):
        return ()
    due = due_jobs(state, shares, now_s)
    asked = _Asked(shares=shares, due=due, kept=kept_added_gpus(state, due), now_s=now_s)
    decided, meets_claims = _placed_as(state, asked, cache)
    if meets_claims or not due:  # without a change, the answer would be that of the last decision
        return decided
    asks_for_gangs = any(has_gangs(job) and job.promised for job in map(state.live_jobs.__getitem__, due))
    moved, _ = _placed_as(state, replace(asked, replans=True, restarts=asks_for_gangs), cache)
    if moved == decided or not keeps_promises(state, moved, now_s, cache):
        return decided
    return tuple(replace(event, needs_other_plan=bool(event.migrated)) for event in moved)


def _placed_as(state: PoolState, asked: _Asked, cache: PlanningCache) -> tuple[tuple[PlacementDecided, ...], bool]:
    """The placements on the GPUs of each type, then of the GPUs that join jobs of other types, as one decision.

    Also whether they meet all claims.
    """
    by_type = [_placed_on_type(part, asked, cache.of_type(gpu_type)) for gpu_type, part in parts(state).items()]
    migrated = frozenset(job_id for placement in by_type for job_id in placement.migrated)
    own = {job_id: gpus for placement in by_type for job_id, gpus in placement.gpus_by_job.items()}
    anew = asked.due.union(migrated)
    added = added_gpus(state, anew, own, asked.kept, asked.now_s)
    placed = tuple(
        next_one
        for job_id in sorted(anew)
        if _changes(
            state,
            job := state.live_jobs[job_id],
            next_one := mixed_generation(state, job, own[job_id], added[job_id])
            if job_id in added
            else new_generation(job, own.get(job_id, ())),
        )
    )
    meets_claims = all(placement.meets_claims for placement in by_type)
    return in_turns(state, placed, migrated, asked.now_s), meets_claims


def _changes(state: PoolState, job: Job, next_one: PlacedJob) -> bool:
    is_same = (next_one.gpus, next_one.virtual_nodes_by_rank) == (job.gpus, job.virtual_nodes_by_rank)
    return not is_same or job.broken or job.has_outdated_spec or shows_lost_gpus(state, job)


def _within(part: PoolState, gpus_by_job: Mapping[str, tuple[GpuId, ...]]) -> dict[str, tuple[GpuId, ...]]:
    """The GPUs that are in this part of the pool, of jobs that have some."""
    here = {job_id: tuple(gpu for gpu in gpus if gpu.node_id in part.nodes) for job_id, gpus in gpus_by_job.items()}
    return {job_id: gpus for job_id, gpus in here.items() if gpus}


def _decided(placements: Iterable[PlacedJob], now_s: float) -> tuple[PlacementDecided, ...]:
    together = tuple(placements)
    return (PlacementDecided(placements=together, at_s=now_s),) if together else ()


def _placed_on_type(state: PoolState, asked: _Asked, cache: PlanningCache) -> Placement:
    """The GPUs of all jobs of a type, if some of them are due or may migrate; else of none. state: the part of it."""
    jobs, topology = list(state.live_jobs.values()), pool_topology(state)
    due, now_s, joined = asked.due.intersection(state.live_jobs), asked.now_s, _within(state, asked.kept)
    unplanned = [job for job in jobs if not job.planned_share and job.job_id not in due]
    last = cache.last_positions(topology, claimed_levels(state))
    claims = {job.job_id: job.own_gpus for job in jobs if has_claim(state, job)}
    others = {job.job_id: job.own_gpus for job in unplanned}
    if not due and not any_spread(last, others) and not any_unmet_claim(last, claims):
        return Placement(gpus_by_job={})
    current = {**{job.job_id: counted_gpus(state, job) for job in jobs}, **joined}
    wanted = {job_id: len(gpus) for job_id, gpus in current.items()}
    for job in map(state.live_jobs.__getitem__, due):
        wanted[job.job_id] = asked.shares[job.job_id]
        if not job.reserved_gpus:
            current[job.job_id] = job.own_gpus
        if given_up := given_up_gpus(state, job.job_id):
            kept = remaining_gpus(current[job.job_id], given_up, asked.shares[job.job_id])
            whole = _whole_replicas(last.blocks, job, remaining_gpus(current[job.job_id], given_up, 0))
            current[job.job_id] = whole if len(whole) >= len(kept) else kept
    slow = slow_gpus_at(state, now_s)

    @remember
    def curves_of(profile_key: str) -> PlacementCurves:
        return placement_curves(state.curves.get(profile_key), block_levels=topology.block_levels)

    @remember
    def benefit(job_id: str) -> MigrationBenefit:
        return _migration_benefit(state, state.live_jobs[job_id], curves_of, now_s)

    @remember
    def displacement_cost(job_id: str) -> float:
        job = state.live_jobs.get(job_id)  # of another type: the allocation decides
        if job is None:
            return inf
        if asked.restarts and job.promised and job.keeps_its_blocks:
            return restart_gpu_seconds(job)
        return displacement_gpu_seconds(state, job, benefit, now_s, cache.curves, replans=asked.replans)

    @remember
    def measured_level(job_id: str) -> Level | None:
        job = state.live_jobs.get(job_id)
        return None if job is None else level_to_measure(state, job, wanted[job_id])

    migration_rules = MigrationRules(
        movable={job.job_id for job in unplanned if _may_move(state, job)} if not slow else set(),
        migration_benefit=benefit,
        claims=claims.keys(),
        displacement_cost=displacement_cost,
        given_up={job_id: limits.without_gpus for job_id, limits in state.gpu_limits.items() if limits.without_gpus},
        measured_level=measured_level,
        gangs={job.job_id: spec_of(job).gpus_per_replica for job in jobs if has_gangs(job)},
        fewest_gpus={job.job_id: spec_of(job).gpu_range.least for job in jobs if has_gangs(job)},
        keep_to_blocks={job.job_id for job in jobs if job.keeps_its_blocks},
    )
    avoided = {*slow, *_gpus_that_leave(state, cache)}
    placement = place(topology, current, wanted, migration_rules, avoided=avoided, last=last)
    own = {job_id: gpus for job_id, gpus in placement.gpus_by_job.items() if job_id not in joined}
    return replace(placement, gpus_by_job=own)


def _whole_replicas(blocks: Blocks, job: Job, gpus: tuple[GpuId, ...]) -> tuple[GpuId, ...]:
    """Those of these GPUs that are whole blocks for its replicas of several GPUs. Others would take two blocks for one
    replica, and a promise counts on one."""
    if not has_gangs(job):
        return ()
    gang = log2(spec_of(job).gpus_per_replica)
    return blocks.gpus(blocks.members(blocks.in_gangs(blocks.positions(gpus), gang)))


def level_to_measure(state: PoolState, job: Job, num_gpus: int) -> Level | None:
    """What connects so many GPUs where a promise counts on them, if the job is to measure its speed there; else None.

    In a profiling run or by a scaling probe; and where a promise counts on a bound, because GPUs were measured that are
    connected better: then by the next job without a promise that gets so many (docs/adr/0122).
    """
    if num_gpus < 2:
        return None
    curve, level = state.curves.get(spec_of(job).profile_key), _level_of(promised_levels(state), num_gpus)
    if job.phase is Phase.PROFILING or (curve is not None and curve.is_probed_by(num_gpus)):
        return level
    is_open = job.phase is Phase.ADMITTED and not job.promised and curve is not None and curve.complete
    return level if is_open and curve is not None and curve.is_bounded(num_gpus, level) else None


def _gpus_that_leave(state: PoolState, cache: PlanningCache) -> Iterator[GpuId]:
    """GPUs of nodes with an announced end: a job that starts elsewhere need not move for it."""
    for node in cache.last(ending_nodes, state.nodes):
        yield from (GpuId(node.node_id, index) for index in range(node.num_gpus))


def _replaced(state: PoolState, now_s: float) -> tuple[PlacementDecided, ...]:
    """Other GPUs for one job that slow ones delay, or less work on these, where workers need not stop for it."""
    held = state.live_jobs.values()
    each = (placed for part in parts(state).values() for placed in without_delay(state, part, now_s, held))
    return _decided(islice(each, 1), now_s)


def wake_at_s(state: PoolState) -> float | None:
    """When the next decision is due although no event comes."""
    state = without_awaited_nodes(state)
    held = list(state.live_jobs.values())
    replaced_s = (next_change_s(state, part, held) for part in parts(state).values())
    due_s = [_next_due_s(state), *replaced_s]
    return min((at_s for at_s in due_s if at_s is not None), default=None)


def _next_due_s(state: PoolState) -> float | None:
    """When a switch has had its time, or a GPU no longer counts as slow, if a job can be placed anew then."""
    switches_end_s = {job.placed_at_s + MAX_SWITCH_S for job in state.live_jobs.values() if job.is_switching}
    may_be_due_s = switches_end_s | relieved_until_s(state)
    shares = allocated_shares(state) if may_be_due_s else {}
    if not may_be_due_s or exceeds_pool(state, shares):
        return None

    def is_due(at_s: float) -> bool:
        return any(not waits_for_replicas(state.live_jobs[job_id]) for job_id in due_jobs(state, shares, at_s))

    return next((at_s for at_s in sorted(may_be_due_s) if is_due(at_s)), None)


def _may_move(state: PoolState, job: Job) -> bool:
    """Whether the job trains without a promise. A start or a measurement is not disturbed; nor does a job move that
    might return to GPUs that it has given up."""
    trains = job.training and job.phase is Phase.ADMITTED and not job.promised
    may_move = trains and not job.reserved_gpus and not job.num_added_gpus and not given_up_gpus(state, job.job_id)
    bounded = _bounded_profiles(state.curves, promised_levels(state)) if may_move else frozenset[str]()
    measures = bool(bounded) and spec_of(job).profile_key in bounded
    return may_move and not (measures and level_to_measure(state, job, job.num_gpus) is not None)


@memoize_recent  # each decision asks for it, for each job, and few events change curves
def _bounded_profiles(curves: Map[str, MeasuredCurve], levels: tuple[Level, ...]) -> frozenset[str]:
    """The profiles of which some number of GPUs is to be measured where a promise counts on it."""
    return frozenset(
        key
        for key, curve in curves.items()
        if (curve.bounded or curve.counted_level)
        and any(curve.is_bounded(each, _level_of(levels, each)) for each in curve.iterations_per_s)
    )


def _level_of(levels: tuple[Level, ...], num_gpus: int) -> Level:
    size = num_gpus.bit_length() - 1
    return levels[size] if size < len(levels) else CLUSTER


def _migration_benefit(
    state: PoolState, job: Job, curves_of: Callable[[str], PlacementCurves], now_s: float
) -> MigrationBenefit:
    """What other GPUs are worth to a job that is to hold `job.num_gpus` of them."""
    curves = curves_of(spec_of(job).measured_key)
    stay_s = _stay_s(job, curves, now_s)
    stop_s = max(resize_cost_of(state, spec_of(job)).seconds(job.num_gpus), state.start_cost_s)
    if job.unsaved_iterations:
        stop_s += job.unsaved_iterations / max(curves.throughput(job.num_gpus, CLUSTER), 1e-9)
    if job.deadline_s is not None and now_s + stay_s <= job.deadline_s < now_s + stay_s + stop_s:
        stop_s = inf  # a move would miss a soft deadline
    return MigrationBenefit(curves=curves, num_gpus=job.num_gpus, stay_s=min(stay_s, LONGEST_STAY_S), stop_s=stop_s)


def _stay_s(job: Job, curves: PlacementCurves, now_s: float) -> float:
    """How long the job keeps its share: by its plan or, without one, until it is done; 0 during a profiling run."""
    if job.promised:
        held = (segment for segment in segments(job.planned_share) if segment.num_gpus == job.num_gpus)
        return next((end_s - now_s for start_s, end_s, _ in held if start_s <= now_s < end_s), 0.0)
    rate = curves.throughput(job.num_gpus, CLUSTER)
    left = max(spec_of(job).max_iterations - job.iteration, 0)
    return left / rate if rate and job.phase is Phase.ADMITTED else 0.0


POLICY = planner("placement", decide, wake_at_s)


def with_cache(cache: PlanningCache) -> Policy[PoolState]:
    """The same policy as an instance that keeps a cache between decisions."""
    return replace(POLICY, decide=partial(decide, cache=cache))


# --- promised blocks ----------------------------------------------------------------------------------
# The claim of a promised job to a whole buddy block, and what it may cost other jobs to make room for it. Pure.
#
# A promise counts on the speed of the worst block of each size, and its schedule has room for migrations
# (docs/adr/0107).

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
    if job.keeps_its_blocks or (job.pinned and not replans):
        return math.inf
    stop_s = migration_cost_of(state, spec_of(job)).seconds(job.num_gpus)
    curve = known_curve(state, spec_of(job), job.speed, curves, promised_at_s=promised_at_s(job))
    if curve is None or not job.planned_share:
        return BROKEN_S * len(job.gpus)  # its promise is broken, and keeps no other one from being kept
    if _spare_iterations(state, job, curve, now_s) < stop_s * _planned_rate(job, curve, now_s):
        return BROKEN_S * len(job.gpus) if replans else math.inf
    return stop_s * len(job.gpus)


def restart_gpu_seconds(job: Job) -> float:
    """The same for a promised script that restarts, as the last choice, where another plan can keep its promise."""
    is_settled = not (job.reserved_gpus or job.broken or job.has_outdated_spec or job.is_switching)
    return BROKEN_S * len(job.gpus) if is_settled else math.inf


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
        after = _without_unsaved_work(apply(after, event, after.sequence + 1), event.migrated)
    for gpu_type, part in parts(after).items():
        planned = planned_pool(part, now_s, cache.of_type(gpu_type), loans=profiling_loans(part, now_s))
        if planned.plan.overcommitted:
            return False
        if late := set(planned.plan.late_jobs):
            loans = profiling_loans(before[gpu_type], now_s)
            if not late.issubset(planned_pool(before[gpu_type], now_s, loans=loans).plan.late_jobs):
                return False
    return True


def _without_unsaved_work(state: PoolState, migrated: Iterable[str]) -> PoolState:
    """The state once these jobs have started elsewhere: a script that restarts goes on from what it has saved."""
    for job in map(state.live_jobs.__getitem__, migrated):
        if job.unsaved_iterations:
            state = with_job(state, fast_replace(job, iteration=job.checkpoint_iteration))
    return state


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
