"""Allocation: how many GPUs each job gets now. Each promised job gets its share, the rest goes by marginal return.

`admission_plan` decides what is promised, `placement` which GPUs these are.
Source: ElasticFlow, Algorithm 2, in continuous time: a step up must also pay for its resize.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.allocation.marginal_return import (
    allocate_by_marginal_return,
    bring_changes_forward,
    keep_unsaved_work,
    start_waiting_jobs,
)
from elasticflow.shared.scheduling.availability.availability_profile import Schedules, change
from elasticflow.shared.scheduling.availability.fill_many_jobs import fill_or_report_late
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers

IMMINENT_S = 0.05
_NO_ROWS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The number of GPUs of each job until `valid_until_s`, when the next planned change is due."""

    num_gpus_by_job: Mapping[str, int]
    valid_until_s: float


def allocate(
    plan: AdmissionPlan,
    opportunistic: Sequence[int],
    hysteresis_s: float = 1.0,
    *,
    soft: Mapping[int, float] = _NO_ROWS,
    num_lent: int = 0,
    padding: Sequence[int] = (),
) -> Allocation:
    """Return the shares for now: those of the plan, then one level for each opportunistic row in order, then by
    marginal return.

    soft: planned end of rows with a soft deadline. They are planned around all promises in this order; a row that
    misses its end is treated as opportunistic.
    hysteresis_s: a resize beyond the plan must end the job at least this much earlier.
    num_lent: GPUs beside those of the plan that are reserved for failures; only opportunistic jobs may use them.
    padding: rows that get what no other row can use, in the same way.
    Opportunistic jobs that would start over at a change keep their GPUs before others start (docs/adr/0090).
    No promise is touched: a schedule is only replaced by one that ends no later and fits around all others.
    Opportunistic jobs use GPUs that no promise holds, for as long as none does, and those of a node that leaves as if
    it stayed: they wait when it is drained, if they must.
    """
    assert len(plan.changed) >= plan.table.num_jobs, "rows are appended with AdmissionPlan.append"
    table, rows, last = plan.table, np.array(opportunistic, np.int64), np.array(padding, np.int64)
    planned, all_rows = np.array(list(soft), np.int64), np.concatenate((plan.promised, rows))
    table.schedules.count_J[rows], table.schedules.count_J[last] = 0, 0
    table.jobs.deadline_J[planned] = list(soft.values())
    availability, schedules, jobs, work, changed = (
        plan.availability,
        table.schedules,
        table.jobs,
        plan.scratch_arrays,
        plan.changed,
    )
    bring_changes_forward(availability, schedules, plan.promised, changed, IMMINENT_S)
    fill_or_report_late(availability, schedules, jobs, planned, changed, work)
    keep_unsaved_work(availability, schedules, jobs, _without_schedule(schedules, rows), work)
    start_waiting_jobs(availability, schedules, jobs, _without_schedule(schedules, rows), work)
    allocate_by_marginal_return(availability, schedules, jobs, all_rows, changed, hysteresis_s, work)
    if num_lent or plan.drops:
        for drop in plan.drops:
            change(availability, drop.at_s, math.inf, drop.num_gpus)
        change(availability, plan.now_s, math.inf, num_lent)
        start_waiting_jobs(availability, schedules, jobs, _without_schedule(schedules, rows), work)
        allocate_by_marginal_return(availability, schedules, jobs, rows, changed, hysteresis_s, work)
    start_waiting_jobs(availability, schedules, jobs, last, work)
    allocate_by_marginal_return(availability, schedules, jobs, last, changed, hysteresis_s, work)
    all_rows = np.concatenate((all_rows, last))
    starts_s, ends_s = schedules.start_JM[all_rows, 0], schedules.end_JM[all_rows, 0]
    holds = schedules.count_J[all_rows] > 0
    now = holds & (starts_s <= plan.now_s)
    shares = np.where(now, schedules.num_gpus_JM[all_rows, 0], 0)
    changes_s: Floats = np.asarray(np.where(now, ends_s, starts_s)[holds], np.float64)
    return Allocation(
        num_gpus_by_job={
            table.job_ids[row]: share for row, share in zip(all_rows.tolist(), shares.tolist(), strict=True)
        },
        valid_until_s=float(changes_s.min(initial=math.inf)),
    )


def _without_schedule(schedules: Schedules, rows: Integers) -> Integers:
    return rows[schedules.count_J[rows] == 0]
