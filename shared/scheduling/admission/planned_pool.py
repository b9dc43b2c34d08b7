"""A pool with a plan of its promises from now on: the input of all planners."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticflow.shared.messages.gpus import ShareSchedule, segments
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan, row_without_job
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, Schedule, flat_schedules
from elasticflow.shared.scheduling.jobs.promised_levels import most_in_blocks
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    KnownCurves,
    arriving_job,
    known_curve,
    profile_known,
    resize_cost_of,
)
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.nodes import PromisableGpus, ending_nodes, moves_of, promisable_of
from elasticflow.shared.state.pool import PoolState, QuoteReservation, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """A plan, and the jobs in the rows of its table with their curves.

    others: rows without a promise. held: the quote reservations in the plan.
    num_lent: GPUs reserved for failures; jobs without a promise may use them while nothing fails.
    """

    plan: AdmissionPlan
    listed: tuple[Job, ...]
    curves: tuple[ScalingCurve, ...]
    others: tuple[int, ...]
    held: tuple[QuoteReservation, ...] = ()
    num_lent: int = 0

    def changed_schedules(self) -> dict[str, ShareSchedule]:
        """The schedules that differ from those of the ledger, by job, flat as in events."""
        table, rows = self.plan.table, self.plan.changed_rows()
        job_ids = [table.job_ids[row] for row in rows]
        return dict(zip(job_ids, flat_schedules(table.schedules, rows), strict=True))


class ProfilingLoan(NamedTuple):
    """GPUs that promises lend to a profiling run until an instant (docs/adr/0112)."""

    num_gpus: int
    until_s: float


def profiling_loans(state: PoolState, now_s: float) -> tuple[ProfilingLoan, ...]:
    """The loans of the last allocation that are in force: their runs are not complete."""
    found = list[ProfilingLoan]()
    for job_id, until_s in sorted(state.lent_until_s.items()):
        job = state.live_jobs.get(job_id) if now_s < until_s else None
        if job is not None and job.phase is Phase.PROFILING and job.num_gpus and not profile_known(state, spec_of(job)):
            found.append(ProfilingLoan(job.num_gpus, until_s))
    return tuple(found)


class _Question(NamedTuple):
    """What is planned: all promises except that to the job `without`, beside these loans."""

    state: PoolState
    now_s: float
    cache: PlanningCache
    without: str
    loans: tuple[ProfilingLoan, ...]


_Held = tuple[tuple[QuoteReservation, SchedulableJob], ...]


def planned_pool(
    state: PoolState,
    now_s: float,
    cache: PlanningCache | None = None,
    *,
    num_gpus: int | None = None,
    without: str = "",
    loans: tuple[ProfilingLoan, ...] | None = None,
) -> PlannedPool:
    """Plan all promises except that to the job `without`, on all GPUs or on `num_gpus` of them, less the reserve for
    failures, and on those of each node until it is drained.

    If that is too few GPUs because more failed than was reserved, use more and more of the reserve (docs/adr/0013).
    loans: beside which all is planned, in any case; None: those of the last allocation, unless they cost a promise.
    """
    there = state.num_gpus if num_gpus is None else num_gpus
    in_force = profiling_loans(state, now_s) if loans is None else loans
    question = _Question(state, now_s, PlanningCache() if cache is None else cache, without, in_force)
    planned = _on_promisable_gpus(question, there)
    if loans is None and in_force:
        plan, num_quotes = planned.plan, len(state.quotes_at(now_s))
        if plan.late or plan.overcommitted or len(planned.held) < num_quotes:  # a node was lost since
            planned = _on_promisable_gpus(question._replace(loans=()), there)
    return planned


def _on_promisable_gpus(question: _Question, there: int) -> PlannedPool:
    """Plan on so many GPUs less the reserve; if a job is late, with less and less of the reserve kept back."""
    config = question.state.config
    promisable = question.cache.last(promisable_of, question.state.nodes, config.reserve_nodes, config.leave_s)
    most, *more = promisable
    most = most.limited_to(int(min(there, most_in_blocks(question.state))))
    without_reserve = int(min(there, most_in_blocks(question.state, keeps_reserve=False)))
    more = [each.limited_to(without_reserve) for each in more]
    planned = _beside_quotes(question, most)
    while planned.plan.late and more:
        planned = _beside_quotes(question, more.pop(0))
    return replace(planned, num_lent=there - planned.plan.num_gpus)


def _beside_quotes(question: _Question, gpus: PromisableGpus) -> PlannedPool:
    """Plan promises and quote reservations together. Drop the reservations if they do not fit, or if a job is late and
    a node was lost, or its end announced, after a quote.
    """
    state, curves = question.state, question.cache.curves
    held = tuple((quote, job) for quote in state.quotes_at(question.now_s) if (job := quoted_job(state, quote, curves)))
    planned = _planned(question, gpus, held)
    fits = not planned.plan.overcommitted
    if not held or (fits and not (planned.plan.late and _lost_a_node(state, held))):
        return planned
    alone = _planned(question, gpus, ())
    return planned if fits and set(planned.plan.late_jobs) == set(alone.plan.late_jobs) else alone


def _lost_a_node(state: PoolState, held: _Held) -> bool:
    """Whether a node was lost, or its end announced, after one of these quotes was reserved."""
    lost_s = [node.since_s for node in state.nodes.values() if not node.alive]
    lost_s += [node.end_announced_s for node in state.nodes.values() if node.end_announced_s is not None]
    return any(quote.at_s <= at_s for quote, _ in held for at_s in lost_s)


def _planned(question: _Question, gpus: PromisableGpus, held: _Held) -> PlannedPool:
    state, now_s, cache, without, loans = question
    pool = cache.rows.table(state, now_s)
    promised = pool.promised
    if without:
        promised = promised[[pool.listed[row].job_id != without for row in map(int, promised)]]
    reserved = list[int]()
    for quote, job in held:
        row = pool.table.append(job)
        pool.table.write_schedule(row, quote.schedule)
        reserved.append(row)
    reserved += [row_without_job(pool.table, now_s, loan.until_s, loan.num_gpus) for loan in loans]
    pool.table.set_moves(moves_of(state, cache.last(ending_nodes, state.nodes), now_s))
    plan = AdmissionPlan(pool.table, promised, gpus, now_s, reserved, cache.scratch)
    if pool.gangs or any(job.gpus_per_replica > 1 for _, job in held):
        plan.gangs |= pool.gangs
        plan.gangs |= {row: job.gpus_per_replica for row, (_, job) in zip(reserved, held, strict=False)}
    plan.nodes = state.nodes
    others = tuple(map(int, pool.others))
    quotes = tuple(quote for quote, _ in held)
    return PlannedPool(plan=plan, listed=pool.listed, curves=pool.curves, others=others, held=quotes)


def quoted_job(state: PoolState, quote: QuoteReservation, curves: KnownCurves | None = None) -> SchedulableJob | None:
    """The job of a quote reservation; None if it can no longer run here."""
    curve = known_curve(state, quote.spec, curves=curves, promised_at_s=quote.at_s)
    return None if curve is None else arriving_job(state, quote.job_id, quote.spec, curve, quote.deadline_s)


def flat(schedule: Schedule) -> ShareSchedule:
    """A schedule as events carry it."""
    return tuple(number for segment in schedule for number in segment)


def unflat(schedule: ShareSchedule) -> Schedule:
    """A schedule from an event."""
    return tuple(segments(schedule))


# --- lent gpus ----------------------------------------------------------------------------------------
# GPUs that promises lend to a profiling run: for how long, whether all promises hold meanwhile, or from when on.
#
# The allocator lends them, and admission tells the sender of a job of unknown speed when it is measured
# (docs/adr/0112).

MEASUREMENT_S = 3.0  # the first step twice and at least three more: 0.6 s or longer, by the length of a step
_SAME_END_S = 0.001
LONGEST_LOAN_S = 60.0  # of a run on one number of GPUs that takes longer, so that it does not use up all slack


def loan_s(state: PoolState, spec: JobSpec, num_gpus: int) -> float:
    """How long a profiling run on so many GPUs is expected to take: its start, and the measurement."""
    return resize_cost_of(state, spec).seconds(num_gpus) + MEASUREMENT_S


def most_lent(state: PoolState) -> int:
    """GPUs that promises lend at most to one run: half of them, so that promised jobs go on."""
    return max(state.num_gpus // 2, 1)


def promises_beside(
    whole: PlannedPool,
    state: PoolState,
    now_s: float,
    cache: PlanningCache,
    *,
    num_aside: int = 0,
    loans: tuple[ProfilingLoan, ...] = (),
) -> PlannedPool | None:
    """The promises without `num_aside` GPUs and beside loans; None if that breaks one of them or a quote reservation.

    Late jobs lend and give up nothing: they would end later still. whole: the promises on all GPUs.
    """
    if num_aside > state.num_gpus:  # possible after the loss of a node
        return None
    pool = planned_pool(state, now_s, cache, num_gpus=state.num_gpus - num_aside, loans=loans)
    ends = _late_ends(whole) if pool.plan.late else {}
    keeps = pool.held == whole.held and all(
        end_s <= ends.get(job_id, -math.inf) + _SAME_END_S for job_id, end_s in _late_ends(pool).items()
    )
    lends = not (loans and (pool.plan.late or pool.plan.overcommitted))
    return pool if keeps and lends else None


def _late_ends(pool: PlannedPool) -> dict[str, float]:
    """When each job ends whose promise cannot be kept; inf if it has too few GPUs."""
    plan = pool.plan
    schedules = ((plan.table.job_ids[row], plan.table.schedule(row)) for row in plan.late)
    return {job_id: schedule[-1].end_s if schedule else math.inf for job_id, schedule in schedules}


def free_from_s(plan: AdmissionPlan, num_gpus: int, lasting_s: float) -> float:
    """The first instant from which on no promise of the plan holds so many GPUs for that long; inf if there is none."""
    start_B, free_B, size = plan.availability
    since_s = math.inf
    for piece in range(int(size[0])):
        if free_B[piece] < num_gpus:
            since_s = math.inf
            continue
        since_s = min(since_s, float(start_B[piece]))
        end_s = float(start_B[piece + 1]) if piece + 1 < size[0] else math.inf
        if end_s - since_s >= lasting_s:
            return since_s
    return math.inf
