"""GPUs that promises lend to a profiling run: for how long, whether all promises hold meanwhile, or from when on.

The allocator lends them, and admission tells the sender of a job of unknown speed when it is measured (docs/adr/0112).
"""

import math

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool, ProfilingLoan, planned_pool
from elasticflow.shared.scheduling.jobs.scheduler_view import resize_cost_of
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.pool import PoolState

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
