"""Who gets how many GPUs now: every promise its share, then what is left where it brings most.

What was promised is decided by `admission_plan`, which GPUs they are by `buddy`.
Source: ElasticFlow, Algorithm 2, in continuous time: a step must also pay for the resize that it takes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.compiled import Floats, Integers
from shared.scheduling.planning import fill_in
from shared.scheduling.profile import Schedules, change
from shared.scheduling.spending import hasten, spend, start

IMMINENT_S = 0.05
_NO_ROWS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """GPUs of each job until `valid_until_s`, when the next planned change is due."""

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
    """Shares for now: the plan's, one level for each opportunistic row in order, then by marginal return.

    soft: the end to plan for of rows with a soft deadline, which are planned around all promises in this order; whoever
    finds no room on time is treated as the opportunistic job that it is one of.
    hysteresis_s: a resize beyond the plan must end the job at least this much earlier.
    num_lent: GPUs beside the plan's, which are kept in reserve for failures; opportunistic jobs alone may use them.
    padding: rows that get what none of all these has a use for, in the same way.
    No promise is touched: a schedule is only ever exchanged for one that ends no later and fits around all the
    others, so the schedules in the plan's table stay jointly possible and every one on time. GPUs that opportunistic
    jobs use are those that no promise holds, for as long as none does.
    """
    table, rows, last = plan.table, np.array(opportunistic, np.int64), np.array(padding, np.int64)
    planned, everybody = np.array(list(soft), np.int64), np.concatenate((plan.promised, rows))
    table.schedules.count_J[rows], table.schedules.count_J[last] = 0, 0
    table.jobs.deadline_J[planned] = list(soft.values())
    profile, schedules, jobs, work, changed = (
        plan.profile,
        table.schedules,
        table.jobs,
        plan.workspace,
        plan.changed,
    )
    hasten(profile, schedules, plan.promised, changed, IMMINENT_S)
    fill_in(profile, schedules, jobs, planned, changed, work)
    start(profile, schedules, jobs, _without_schedule(schedules, rows), work)
    spend(profile, schedules, jobs, everybody, changed, hysteresis_s, work)
    if num_lent:
        change(profile, plan.now_s, math.inf, num_lent)
        start(profile, schedules, jobs, _without_schedule(schedules, rows), work)
        spend(profile, schedules, jobs, rows, changed, hysteresis_s, work)
    start(profile, schedules, jobs, last, work)
    spend(profile, schedules, jobs, last, changed, hysteresis_s, work)
    everybody = np.concatenate((everybody, last))
    starts_s, ends_s = schedules.start_JM[everybody, 0], schedules.end_JM[everybody, 0]
    holds = schedules.count_J[everybody] > 0
    now = holds & (starts_s <= plan.now_s)
    shares = np.where(now, schedules.num_gpus_JM[everybody, 0], 0)
    changes_s: Floats = np.asarray(np.where(now, ends_s, starts_s)[holds], np.float64)
    return Allocation(
        num_gpus_by_job={
            table.job_ids[row]: share for row, share in zip(everybody.tolist(), shares.tolist(), strict=True)
        },
        valid_until_s=float(changes_s.min(initial=math.inf)),
    )


def _without_schedule(schedules: Schedules, rows: Integers) -> Integers:
    return rows[schedules.count_J[rows] == 0]
