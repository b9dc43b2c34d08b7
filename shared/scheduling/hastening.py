"""Who cannot be in time goes first, where that makes nobody else late: planned around the others, it would wait for
GPUs that these can do without for a while.

Loops over arrays, compiled; what they are for is decided by `admission_plan`.
Axes: J = jobs; K = some of them, in an order.
"""

import numpy as np

from shared.scheduling.compiled import Integers, compiled
from shared.scheduling.filling import Jobs
from shared.scheduling.planning import fill_anew, fill_soonest
from shared.scheduling.profile import Profile, Schedules, sweep
from shared.scheduling.workspace import Workspace

WORTH_MOVING_S = 1.0  # sooner, all late jobs together; else everybody would be moved for nothing


@compiled
def late_first(
    profile: Profile,
    kept: Schedules,
    schedules: Schedules,
    jobs: Jobs,
    reserved: Integers,
    late_K: Integers,
    order_K: Integers,
    tries: int,
    now_s: float,
    num_gpus: int,
    work: Workspace,
) -> bool:
    """Fill the late jobs one after another, each to end as early as it can, and all others behind them: whether these
    are in time, and the late ones sooner than they are kept. `profile` is left with what is free then.

    reserved: rows that have what they keep in `schedules` already.
    """
    sweep(profile, schedules, reserved, now_s, num_gpus)
    fill_soonest(profile, schedules, jobs, late_K, work)
    sooner_s = 0.0
    for job in late_K:
        before, now = kept.count_J[job], schedules.count_J[job]
        if before > 0 and now > 0:
            sooner_s += kept.end_JM[job, before - 1] - schedules.end_JM[job, now - 1]
    if sooner_s <= WORTH_MOVING_S:
        return False
    settled = np.concatenate((late_K, reserved))
    return (
        fill_anew(profile, schedules, schedules, jobs, settled, order_K, 0, tries, now_s, num_gpus, work) >= 0
    )
