"""Who gets how many GPUs now: every promise its share, then what is left where it brings most.

What was promised is decided by `admission_plan`, which GPUs they are by `buddy`.
Source: ElasticFlow, Algorithm 2, in continuous time: a step must also pay for the resize that it takes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.compiled import Floats
from shared.scheduling.planning import hasten, spend, start
from shared.scheduling.profile import change

IMMINENT_S = 0.05


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
    num_lent: int = 0,
    padding: Sequence[int] = (),
) -> Allocation:
    """Shares for now: the plan's, one level for each opportunistic row in order, then by marginal return.

    hysteresis_s: a resize beyond the plan must end the job at least this much earlier.
    num_lent: GPUs beside the plan's, which are kept in reserve for failures; opportunistic jobs alone may use them.
    padding: rows that get what none of all these has a use for, in the same way.
    No promise is touched: a schedule is only ever exchanged for one that ends no later and fits around all the
    others, so the schedules in the plan's table stay jointly possible and every one on time. GPUs that opportunistic
    jobs use are those that no promise holds, for as long as none does.
    """
    table, rows, last = plan.table, np.array(opportunistic, np.int64), np.array(padding, np.int64)
    everybody = np.concatenate((plan.promised, rows))
    table.schedules.count_J[rows], table.schedules.count_J[last] = 0, 0
    hasten(plan.profile, table.schedules, plan.promised, IMMINENT_S)
    start(plan.profile, table.schedules, table.jobs, rows, plan.workspace)
    spend(plan.profile, table.schedules, table.jobs, everybody, hysteresis_s, plan.workspace)
    if num_lent:
        change(plan.profile, plan.now_s, math.inf, num_lent)
        waiting = rows[table.schedules.count_J[rows] == 0]
        start(plan.profile, table.schedules, table.jobs, waiting, plan.workspace)
        spend(plan.profile, table.schedules, table.jobs, rows, hysteresis_s, plan.workspace)
    start(plan.profile, table.schedules, table.jobs, last, plan.workspace)
    spend(plan.profile, table.schedules, table.jobs, last, hysteresis_s, plan.workspace)
    everybody = np.concatenate((everybody, last))
    starts_s, ends_s = table.schedules.start_JM[everybody, 0], table.schedules.end_JM[everybody, 0]
    holds = table.schedules.count_J[everybody] > 0
    now = holds & (starts_s <= plan.now_s)
    shares = np.where(now, table.schedules.num_gpus_JM[everybody, 0], 0)
    changes_s: Floats = np.asarray(np.where(now, ends_s, starts_s)[holds], np.float64)
    return Allocation(
        num_gpus_by_job={
            table.job_ids[row]: int(share) for row, share in zip(everybody, shares, strict=True)
        },
        valid_until_s=float(changes_s.min(initial=math.inf)),
    )
