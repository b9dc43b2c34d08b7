"""Keeping the schedules that were planned before, as far as they still hold.

Loops over arrays, compiled; what they are for is decided by `admission_plan`.
Axes: J = jobs; K = some of them, in an order.
"""

import numpy as np

from shared.scheduling.compiled import Flags, Integers, compiled
from shared.scheduling.filling import OUTAGE_S, SLACK_S, Jobs
from shared.scheduling.planning import fill_in
from shared.scheduling.profile import Profile, Schedules, sweep
from shared.scheduling.workspace import Workspace

WORTH_GIVING_BACK_S = 1.0


@compiled
def settle(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    order_K: Integers,
    reserved: Integers,
    changed_J: Flags,
    now_s: float,
    num_gpus: int,
    work: Workspace,
) -> tuple[Integers, bool]:
    """Keep what still holds, and fill the others around it in order: positions of these, and whether all fit.

    reserved: rows that keep what they have in any case. changed_J: set where a schedule is no longer the one of before.
    """
    forget_past(schedules, order_K, now_s)
    broken = hold_all(schedules, jobs, order_K, changed_J, now_s)
    if sweep(profile, schedules, np.concatenate((np.delete(order_K, broken), reserved)), now_s, num_gpus) < 0:
        return broken, False
    return broken, len(fill_in(profile, schedules, jobs, order_K[broken], changed_J, work)) == 0


@compiled
def forget_past(schedules: Schedules, jobs_K: Integers, now_s: float) -> None:
    """Cut the schedules of some jobs to what is still to come."""
    for job in jobs_K:
        starts, ends = schedules.start_JM[job], schedules.end_JM[job]
        num_gpus = schedules.num_gpus_JM[job]
        past, count = 0, schedules.count_J[job]
        while past < count and ends[past] <= now_s:
            past += 1
        for segment in range(past, count):
            starts[segment - past] = max(starts[segment], now_s)
            ends[segment - past], num_gpus[segment - past] = ends[segment], num_gpus[segment]
        schedules.count_J[job] = count - past


@compiled
def hold(schedules: Schedules, jobs: Jobs, job: int, now_s: float) -> float:
    """When a job ends under its schedule, inf if not within it; one that ends early gives back the rest.

    It holds as long as it does what is left. What is kept beyond that is for failures to come: as much as `fill` asks.
    """
    starts, ends = schedules.start_JM[job], schedules.end_JM[job]
    num_gpus = schedules.num_gpus_JM[job]
    count = schedules.count_J[job]
    left, held, ready_s, previous_end_s = (
        jobs.remaining_J[job],
        jobs.held_J[job],
        jobs.stalled_until_J[job],
        now_s,
    )
    if left <= 0.0:
        schedules.count_J[job] = 0
        return now_s
    left += 0.5 * SLACK_S * jobs.rates_JL[job, jobs.num_levels_J[job] - 1]
    lost, done = lost_at_most(schedules, jobs, job), False
    for segment in range(count):
        level = 0
        while level < jobs.num_levels_J[job] and jobs.levels_JL[job, level] != num_gpus[segment]:
            level += 1
        if level == jobs.num_levels_J[job]:
            return np.inf  # a level that it no longer has
        if num_gpus[segment] != held or starts[segment] > previous_end_s:
            ready_s = starts[segment] + jobs.costs_JL[job, level]
        working_s = max(starts[segment], ready_s)
        rate = jobs.rates_JL[job, level]
        done = done or left <= rate * (ends[segment] - working_s)
        enough = left + lost * (1.0 + (working_s - now_s) / OUTAGE_S)
        gained_per_s = rate - lost / OUTAGE_S
        if enough <= gained_per_s * (ends[segment] - working_s):
            if working_s + enough / gained_per_s < ends[count - 1] - WORTH_GIVING_BACK_S:
                ends[segment] = working_s + enough / gained_per_s + SLACK_S
                schedules.count_J[job] = segment + 1
            return ends[schedules.count_J[job] - 1]
        left -= rate * max(ends[segment] - working_s, 0.0)
        held, previous_end_s = num_gpus[segment], ends[segment]
    return ends[count - 1] if done else np.inf


@compiled
def lost_at_most(schedules: Schedules, jobs: Jobs, job: int) -> float:
    """Iterations that k failures cost at most under its schedule."""
    highest, level = 0, 0
    for segment in range(schedules.count_J[job]):
        highest = max(highest, schedules.num_gpus_JM[job, segment])
    while level < jobs.num_levels_J[job] - 1 and jobs.levels_JL[job, level] < highest:
        level += 1
    return jobs.lost_JL[job, level]


@compiled
def hold_all(schedules: Schedules, jobs: Jobs, jobs_K: Integers, changed_J: Flags, now_s: float) -> Integers:
    """Hold each schedule: positions in jobs_K of those that no longer end on time."""
    broken = np.empty(jobs_K.shape[0], np.int64)
    num_broken = 0
    for position in range(jobs_K.shape[0]):
        job = jobs_K[position]
        count = schedules.count_J[job]
        until_s = schedules.end_JM[job, count - 1] if count else now_s
        ends_s = hold(schedules, jobs, job, now_s)
        # no schedule is none that holds, without a deadline too
        if ends_s == np.inf or ends_s > jobs.deadline_J[job]:
            broken[num_broken] = position
            num_broken += 1
        elif schedules.count_J[job] != count or ends_s != until_s:
            changed_J[job] = True
    return broken[:num_broken]
