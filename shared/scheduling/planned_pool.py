"""A pool with its promises laid out from now on: where all planners start from."""

from dataclasses import dataclass, replace

from shared.messages.cluster import ShareSchedule, segments
from shared.messages.job_state import Job
from shared.messages.pool_state import HeldQuote, PoolState
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.job_table import SchedulableJob, Schedule, Segment
from shared.scheduling.outlook import known_curve, newcomer, promisable_gpus
from shared.scheduling.pool_rows import PoolRows
from shared.scheduling.scaling_curve import ScalingCurve

_ROWS = PoolRows()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """A plan, and the jobs in the rows of its table with their curves.

    others: rows without a promise. held: the quotes in the plan.
    num_lent: GPUs in reserve for failures, for those without a promise as long as nothing fails.
    """

    plan: AdmissionPlan
    listed: tuple[Job, ...]
    curves: tuple[ScalingCurve, ...]
    others: tuple[int, ...]
    held: tuple[HeldQuote, ...] = ()
    num_lent: int = 0

    def changed_schedules(self) -> dict[str, ShareSchedule]:
        """The schedules that are no longer those that the ledger knows, by job: flat, as events carry them."""
        plan = self.plan
        return {plan.table.job_ids[row]: flat(plan.table.schedule(row)) for row in plan.changed_rows()}


def planned_pool(
    state: PoolState, now_s: float, *, num_gpus: int | None = None, without: str = ""
) -> PlannedPool:
    """All promises of the pool but that to one job, on all its GPUs or on some of them, less the reserve for failures.

    Where that is too little (more has failed than was reserved for), on more and more of the reserve (docs/adr/0013).
    """
    there = state.num_gpus if num_gpus is None else num_gpus
    most, *more = (min(promisable, there) for promisable in promisable_gpus(state))
    planned = _beside_quotes(state, now_s, most, without)
    while planned.plan.late and more:
        planned = _beside_quotes(state, now_s, more.pop(0), without)
    return replace(planned, num_lent=there - planned.plan.num_gpus)


def _beside_quotes(state: PoolState, now_s: float, num_gpus: int, without: str) -> PlannedPool:
    """A held quote is as good as a promise, but where a node was lost since: then it stands back if one were late."""
    held = tuple((quote, job) for quote in state.quotes_at(now_s) if (job := quoted_job(state, quote)))
    planned = _planned(state, now_s, num_gpus, without, held)
    fits = not planned.plan.overcommitted
    if not held or (fits and not (planned.plan.late and _lost_a_node(state, held))):
        return planned
    alone = _planned(state, now_s, num_gpus, without, ())
    return planned if fits and set(planned.plan.late_jobs) == set(alone.plan.late_jobs) else alone


def _lost_a_node(state: PoolState, held: tuple[tuple[HeldQuote, SchedulableJob], ...]) -> bool:
    """Whether GPUs are gone that were there when one of these quotes was held."""
    lost_s = [node.since_s for node in state.nodes.values() if not node.alive]
    return any(quote.at_s <= at_s for quote, _ in held for at_s in lost_s)


def _planned(
    state: PoolState,
    now_s: float,
    num_gpus: int,
    without: str,
    held: tuple[tuple[HeldQuote, SchedulableJob], ...],
) -> PlannedPool:
    pool = _ROWS.table(state, now_s)
    promised = pool.promised
    if without:
        promised = promised[[pool.listed[row].job_id != without for row in map(int, promised)]]
    reserved = list[int]()
    for quote, job in held:
        row = pool.table.append(job)
        pool.table.write_schedule(row, quote.schedule)
        reserved.append(row)
    plan = AdmissionPlan(pool.table, promised, num_gpus, now_s, reserved)
    others = tuple(map(int, pool.others))
    quotes = tuple(quote for quote, _ in held)
    return PlannedPool(plan=plan, listed=pool.listed, curves=pool.curves, others=others, held=quotes)


def quoted_job(state: PoolState, quote: HeldQuote) -> SchedulableJob | None:
    """The job of a quote; None if it runs nowhere here any more."""
    curve = known_curve(state, quote.spec)
    return None if curve is None else newcomer(state, quote.job_id, quote.spec, curve, quote.deadline_s)


def flat(schedule: Schedule) -> ShareSchedule:
    """A schedule, as events carry it."""
    return tuple(number for segment in schedule for number in segment)


def unflat(schedule: ShareSchedule) -> Schedule:
    """A schedule that came in an event."""
    return tuple(Segment(*segment) for segment in segments(schedule))
