"""A pool with its promises laid out from now on: where all planners start from."""

from dataclasses import dataclass

import numpy as np

from shared.messages.cluster import ShareSchedule
from shared.messages.pool_state import Job, PoolState
from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.job_table import Schedule
from shared.scheduling.pool_rows import PoolRows

_ROWS = PoolRows()


@dataclass(frozen=True, slots=True)
class PlannedPool:
    """A plan, and the jobs in the rows of its table; others: rows without a promise."""

    plan: AdmissionPlan
    listed: tuple[Job, ...]
    others: tuple[int, ...]

    def changed_schedules(self) -> dict[str, ShareSchedule]:
        """The schedules that are no longer those that the ledger knows, by job: flat, as events carry them."""
        plan = self.plan
        return {plan.table.job_ids[row]: flat(plan.table.schedule(row)) for row in plan.changed_rows()}


def planned_pool(state: PoolState, now_s: float, *, num_gpus: int | None = None) -> PlannedPool:
    """All promises of the pool, on all its GPUs or on some of them."""
    pool = _ROWS.table(state, now_s)
    plan = AdmissionPlan(pool.table, pool.promised, state.num_gpus if num_gpus is None else num_gpus, now_s)
    return PlannedPool(plan, pool.listed, tuple(np.asarray(pool.others).tolist()))


def flat(schedule: Schedule) -> ShareSchedule:
    """A schedule, as events carry it."""
    return tuple(number for segment in schedule for number in segment)
