"""Jobs without a promise: which of them get the GPUs that promises leave, in which order, and how many for fair shares.

`PoolConfig.best_effort` chooses the rule. The rules differ in `_RULES` only, and `fair` also in `fair_shares`.
`allocation` gives the GPUs out. All rules read the folded job only, so they add nothing to the state.
"""

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool
from elasticflow.shared.scheduling.compiled_loops import Flags, Integers
from elasticflow.shared.state.pool import PoolState, spec_of

# --- fair shares ---------------------------------------------------------------------------------------

Order = tuple[Any, ...]
_EQUAL: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one job may take of GPUs that are shared out.

    levels: the numbers of GPUs on which it runs, ascending. order: its place among jobs with as much for their weight.
    taken: GPUs that it holds beside those that are shared out.
    """

    name: str
    tenant: str = ""
    weight: float = 1.0
    levels: tuple[int, ...]
    order: Order
    taken: int = 0


def fair_shares(claims: Iterable[Claim], num_gpus: int, tenant_weights: Mapping[str, float] = _EQUAL) -> dict[str, int]:
    """Weighted max-min fair shares in two steps: the tenant with the least for its weight is next, and of its jobs the
    one with the least for its own weight.

    A job begins with its fewest GPUs. A step that does not fit is passed over. Jobs without any GPU are left out.
    tenant_weights: 1 unless given. Source: VirtualFlow, section 4.2, for the jobs of one tenant.
    """
    shares, share_by_tenant = dict[str, int](), defaultdict[str, int](int)
    jobs_by_tenant = defaultdict[str, list[tuple[float, Order, Claim]]](list)
    for claim in claims:
        share_by_tenant[claim.tenant] += claim.taken
        if not claim.taken:
            jobs_by_tenant[claim.tenant].append((0.0, claim.order, claim))

    def turn(tenant: str) -> tuple[float, float, Order, str]:
        share_of_job, order, _ = jobs_by_tenant[tenant][0]
        return share_by_tenant[tenant] / tenant_weights.get(tenant, 1.0), share_of_job, order, tenant

    for jobs in jobs_by_tenant.values():
        heapq.heapify(jobs)
    turns = [turn(tenant) for tenant in jobs_by_tenant]
    heapq.heapify(turns)
    while turns and num_gpus:
        *_, tenant = heapq.heappop(turns)
        jobs = jobs_by_tenant[tenant]
        _, order, claim = heapq.heappop(jobs)
        share = shares.get(claim.name, 0)
        above = bisect_right(claim.levels, share)
        if above < len(claim.levels) and claim.levels[above] - share <= num_gpus:
            level = claim.levels[above]
            shares[claim.name] = level
            share_by_tenant[tenant] += level - share
            num_gpus -= level - share
            heapq.heappush(jobs, (level / claim.weight, order, claim))
        if jobs:
            heapq.heappush(turns, turn(tenant))
    return shares


# --- rules ---------------------------------------------------------------------------------------------

TIRESIAS_QUANTA_GPU_S = (10_000.0, 200_000.0)  # attained GPU-seconds at which a job sinks into the next queue
TIRESIAS_PROMOTE_AFTER = 8.0  # a job that has waited so many times as long as it has run is served first
_AGAIN_S = 1.0  # at least so long until a rule is asked again because a job runs


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLimits:
    """The two numbers of `PoolConfig` that all rules read: see there."""

    wait_factor: float
    run_factor: float


class BestEffortJob(NamedTuple):
    """A job without a promise at one instant. Its lengths are seconds alone on the fewest GPUs on which it runs.

    weight: its priority over the mean of its tenant's, so that a tenant gains nothing if it raises all of them.
    stop_s: what a start on the GPUs that it holds costs. speedup: its speed there over that on the fewest.
    has_minimum: an operator set the fewest GPUs.
    """

    row: int
    job_id: str
    tenant: str
    admitted_at_s: float
    length_s: float
    remaining_s: float
    levels: tuple[int, ...]
    held: int
    placed_at_s: float
    stop_s: float
    speedup: float
    weight: float
    has_minimum: bool

    @property
    def ran_s(self) -> float:
        """The part of its length that is done."""
        return self.length_s - self.remaining_s

    def due_s(self, limits: WaitingLimits) -> float:
        """When it would end if it waited as long as it may, and then ran."""
        return self.admitted_at_s + (1.0 + limits.wait_factor / self.weight) * self.length_s

    def overdue_at_s(self, limits: WaitingLimits) -> float:
        """From when on no job that is not overdue may pass it, if it waits until then."""
        return self.due_s(limits) - self.remaining_s

    def settles_at_s(self, limits: WaitingLimits) -> float:
        """Until when it keeps its GPUs although shorter jobs wait; -inf without GPUs."""
        return self.placed_at_s + (1.0 + limits.run_factor) * self.stop_s if self.held else -math.inf


class Turn(NamedTuple):
    """The place of a job in the order, smallest first.

    settled: its place without the GPUs that it keeps for now. waits_until_s, runs_until_s: when the place changes by
    itself if the job waits or runs until then.
    """

    job: BestEffortJob
    place: Order
    settled: Order
    waits_until_s: float = math.inf
    runs_until_s: float = math.inf


class Rank(IntEnum):
    """The first part of a place.

    A job that waits for several GPUs may stop jobs that keep theirs: they would never be free at once. One that waits
    for one GPU gets the next one.
    """

    WAITS_FOR_SEVERAL = 0
    KEEPS = 1
    OVERDUE = 2
    IN_ORDER = 3


def _turn(
    job: BestEffortJob, in_order: Order, overdue: Order, overdue_at_s: float, keeps_until_s: float, now_s: float
) -> Turn:
    """The place of a job: `in_order` by the rule, or `overdue` from that instant on, or that of a job that keeps its
    GPUs."""
    settled: Order = (Rank.IN_ORDER, *in_order)
    if now_s >= overdue_at_s:
        settled = (Rank.OVERDUE if job.levels[0] == 1 else Rank.WAITS_FOR_SEVERAL, *overdue)
    keeps = now_s < keeps_until_s and settled[0] > Rank.KEEPS
    return Turn(
        job=job,
        place=(Rank.KEEPS, *overdue) if keeps else settled,
        settled=settled,
        waits_until_s=overdue_at_s,
        runs_until_s=keeps_until_s if keeps else math.inf,
    )


def _shortest_first(job: BestEffortJob, limits: WaitingLimits, now_s: float) -> Turn:
    """The shortest remaining job first. A running job counts as shorter by what a stop would cost it.

    It waits at most `wait_factor` times its own length while shorter ones pass, and then for jobs that keep their GPUs
    or have waited longer. A job that needs one GPU at least stops another at the earliest after `run_factor` times the
    resize cost of that job's last start: so these stops cost at most one part in `run_factor` of its time.
    """
    left_s = (job.remaining_s - (job.stop_s if job.held else 0.0)) / job.weight
    due: Order = (job.due_s(limits), job.job_id)
    return _turn(job, (left_s, job.job_id), due, job.overdue_at_s(limits), job.settles_at_s(limits), now_s)


def _least_attained(job: BestEffortJob, limits: WaitingLimits, now_s: float) -> Turn:
    """The first queue first, and in each queue the first to arrive. A job sinks as it uses GPUs.

    Attained service is the part of the length that is done, on the fewest GPUs. Waiting is all of the time besides.
    Sources: Tiresias, section 3; Amoeba, section 6.
    """
    fewest, arrived = job.levels[0], (job.admitted_at_s, job.job_id)
    queue = bisect_right(TIRESIAS_QUANTA_GPU_S, job.ran_s * fewest / job.weight)
    promoted_at_s = job.admitted_at_s + (1.0 + TIRESIAS_PROMOTE_AFTER) * job.ran_s if queue else math.inf
    turn = _turn(job, (queue, *arrived), arrived, promoted_at_s, job.settles_at_s(limits), now_s)
    if turn.place != turn.settled or queue == len(TIRESIAS_QUANTA_GPU_S):
        return turn
    left_s = TIRESIAS_QUANTA_GPU_S[queue] * job.weight / fewest - job.ran_s
    return turn._replace(runs_until_s=now_s + max(left_s / job.speedup, _AGAIN_S))


def _fair(job: BestEffortJob, limits: WaitingLimits, now_s: float) -> Turn:
    """The order among the jobs of one tenant: overdue jobs, running ones, then the greatest priority.

    In a tenant, stops and waits are bounded as in `_shortest_first`. For a tenant that has less than its share, a job
    stops at once.
    """
    in_order: Order = (not job.held, -job.weight, job.admitted_at_s, job.job_id)
    due: Order = (job.due_s(limits), job.job_id)
    return _turn(job, in_order, due, job.overdue_at_s(limits), job.settles_at_s(limits), now_s)


Rule = Callable[[BestEffortJob, WaitingLimits, float], Turn]
_RULES: Mapping[str, Rule] = {"shortest-first": _shortest_first, "fair": _fair, "elastic-tiresias": _least_attained}


def turn_by_rule(rule: str, job: BestEffortJob, limits: WaitingLimits, now_s: float) -> Turn:
    """The place of a job by the rule of this name."""
    return _RULES[rule](job, limits, now_s)


# --- queue ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEffortQueue:
    """The jobs without a promise in order, and apart from them those of padding.

    tenant_weights: of fair shares; None: the rule only orders the jobs.
    """

    turns: tuple[Turn, ...]
    padding_turns: tuple[Turn, ...]
    tenant_weights: Mapping[str, float] | None = None

    @property
    def rows(self) -> list[int]:
        return [turn.job.row for turn in self.turns]

    @property
    def padding(self) -> list[int]:
        return [turn.job.row for turn in self.padding_turns]

    def shares_of(self, num_gpus: int, taken: Mapping[int, int]) -> dict[int, int]:
        """The fair share of each row that has one, of the GPUs that are free. Empty if the rule only orders the jobs.

        taken: GPUs that rows have already.
        """
        if self.tenant_weights is None:
            return {}
        rows = {turn.job.job_id: turn.job.row for turn in self.turns}
        claims = (
            Claim(
                name=turn.job.job_id,
                tenant=turn.job.tenant,
                weight=turn.job.weight,
                levels=turn.job.levels,
                order=(not turn.job.has_minimum, *turn.place),
                taken=taken.get(turn.job.row, 0),
            )
            for turn in self.turns
        )
        shares = fair_shares(claims, num_gpus, self.tenant_weights)
        return {rows[job_id]: share for job_id, share in shares.items()}

    def next_change_s(self, num_gpus_by_job: Mapping[str, int], now_s: float) -> float:
        """When the order changes so that a job that waits now may get GPUs; inf if none does.

        num_gpus_by_job: as allocated in this order.
        """
        turns = (*self.turns, *self.padding_turns)
        waiting = [turn for turn in turns if not num_gpus_by_job.get(turn.job.job_id)]
        if not waiting:
            return math.inf
        first = min(turn.settled for turn in waiting)
        changes_s = [turn.waits_until_s for turn in waiting]
        changes_s += [
            turn.runs_until_s
            for turn in turns
            if num_gpus_by_job.get(turn.job.job_id) and (turn.settled > first or turn.place == turn.settled)
        ]
        return min((at_s for at_s in changes_s if at_s > now_s), default=math.inf)


def best_effort_queue(state: PoolState, pool: PlannedPool, now_s: float) -> BestEffortQueue:
    """The rows without a promise in the order of the pool's rule. Jobs for which an operator set a minimum of GPUs come
    first."""
    config = state.config
    limits = WaitingLimits(wait_factor=config.best_effort_wait_factor, run_factor=config.best_effort_run_factor)
    turns = [turn_by_rule(config.best_effort, job, limits, now_s) for job in _jobs(state, pool)]
    turns.sort(key=attrgetter("place"))
    turns.sort(key=lambda turn: not turn.job.has_minimum)
    padding = {row for row in pool.others if spec_of(pool.listed[row]).job_class is JobClass.PADDING}
    tenants = {turn.job.tenant for turn in turns} if config.best_effort == "fair" else None
    return BestEffortQueue(
        turns=tuple(turn for turn in turns if turn.job.row not in padding),
        padding_turns=tuple(turn for turn in turns if turn.job.row in padding),
        tenant_weights=None if tenants is None else {tenant: config.quota(tenant).weight for tenant in tenants},
    )


def _jobs(state: PoolState, pool: PlannedPool) -> list[BestEffortJob]:
    """Columns are read at once: a pool may have a thousand such jobs, and each decision looks at all of them."""
    rows, jobs = np.array(pool.others, np.int64), pool.plan.table.jobs
    if not len(rows):
        return []
    listed = [(job := pool.listed[row], spec_of(job)) for row in pool.others]
    priorities = defaultdict[str, list[float]](list)
    for job, spec in listed:
        priorities[job.tenant].append(spec.priority)
    mean_priority = {tenant: math.fsum(each) / len(each) for tenant, each in priorities.items()}
    level_L: Integers = np.arange(int(jobs.levels_JL.shape[1]))
    is_level_JL: Flags = level_L < jobs.num_levels_J[rows, None]
    held = jobs.held_J[rows]
    is_up_to_held_JL: Flags = is_level_JL & (jobs.levels_JL[rows] <= held[:, None])
    level = np.maximum(is_up_to_held_JL.sum(axis=1) - 1, 0)
    slowest = jobs.rates_JL[rows, 0]
    columns = zip(
        listed,
        pool.others,
        jobs.levels_JL[rows].tolist(),
        jobs.num_levels_J[rows].tolist(),
        held.tolist(),
        slowest.tolist(),
        (jobs.remaining_J[rows] / slowest).tolist(),
        jobs.costs_JL[rows, level].tolist(),
        (jobs.rates_JL[rows, level] / slowest).tolist(),
        strict=True,
    )
    has_minimum = {job_id for job_id, gpu_limits in state.gpu_limits.items() if gpu_limits.min_gpus is not None}
    return [
        BestEffortJob(
            row=row,
            job_id=job.job_id,
            tenant=job.tenant,
            admitted_at_s=job.decided_at_s if job.admitted_at_s is None else job.admitted_at_s,
            length_s=spec.own_iterations / rate,
            remaining_s=remaining_s,
            levels=tuple(num_gpus_L[:num_levels]),
            held=num_gpus,
            placed_at_s=job.placed_at_s,
            stop_s=stop_s,
            speedup=speedup,
            weight=spec.priority / mean_priority[job.tenant],
            has_minimum=job.job_id in has_minimum,
        )
        for (job, spec), row, num_gpus_L, num_levels, num_gpus, rate, remaining_s, stop_s, speedup in columns
    ]
