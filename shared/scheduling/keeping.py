"""Keeping the schedules that were planned before, as far as they still hold.

Loops over arrays, compiled; what they are for is decided by `admission_plan`.
Axes: J = jobs; K = some of them, in an order.
"""

import numpy as np

from shared.scheduling.compiled import Flags, Integers, compiled
from shared.scheduling.filling import OUTAGE_S, SLACK_S, Jobs
from shared.scheduling.planning import fill_in
from shared.scheduling.profile import Profile, Schedules, fewest_free, reserve, sweep
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
    """Keep what still holds, and what does if it is held a little longer, and fill the others around it in order:
    positions of those that did not hold, and whether all fit.

    reserved: rows that keep what they have in any case. changed_J: set where a schedule is no longer the one of before.
    """
    forget_past(schedules, order_K, now_s)
    broken = hold_all(schedules, jobs, order_K, changed_J, now_s)
    if sweep(profile, schedules, np.concatenate((np.delete(order_K, broken), reserved)), now_s, num_gpus) < 0:
        return broken, False
    short = np.empty(len(broken), np.int64)
    num_short = 0
    for job in order_K[broken]:
        if not stretch(profile, schedules, jobs, job, changed_J, now_s):
            short[num_short] = job
            num_short += 1
    return broken, len(fill_in(profile, schedules, jobs, short[:num_short], changed_J, work)) == 0


@compiled
def stretch(
    profile: Profile, schedules: Schedules, jobs: Jobs, job: int, changed_J: Flags, now_s: float
) -> bool:
    """Hold the last share for as long as it takes, if that is in time and all of it is free; whether it is.

    Reports are of whole iterations: nearly every job seems to be a little behind its plan.
    """
    ends_s, count = hold(schedules, jobs, job, now_s), schedules.count_J[job]
    if count == 0 or ends_s == np.inf or ends_s > jobs.deadline_J[job]:
        return False
    until_s = min(ends_s + SLACK_S, jobs.deadline_J[job])
    starts, ends, num_gpus = schedules.start_JM[job], schedules.end_JM[job], schedules.num_gpus_JM[job]
    for segment in range(count):
        free_until_s = ends[segment] if segment < count - 1 else until_s
        if fewest_free(profile, starts[segment], free_until_s) < num_gpus[segment]:
            return False
    ends[count - 1], changed_J[job] = until_s, True
    reserve(profile, schedules, job)
    return True


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
    """When a job ends under its schedule; one that ends early gives back the rest. Later than the schedule does if the
    last share would have to be held for longer, inf if it is none.

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
    lost, done, needed_until_s = lost_at_most(schedules, jobs, job), False, np.inf
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
        needed_until_s = working_s + enough / gained_per_s if gained_per_s > 0.0 else np.inf
        if enough <= gained_per_s * (ends[segment] - working_s):
            if working_s + enough / gained_per_s < ends[count - 1] - WORTH_GIVING_BACK_S:
                ends[segment] = min(working_s + enough / gained_per_s + SLACK_S, ends[segment])
                schedules.count_J[job] = segment + 1
            return ends[schedules.count_J[job] - 1]
        left -= rate * max(ends[segment] - working_s, 0.0)
        held, previous_end_s = num_gpus[segment], ends[segment]
    return ends[count - 1] if done else needed_until_s


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
        held = schedules.count_J[job]
        held_until_s = schedules.end_JM[job, held - 1] if held else now_s
        if ends_s > min(held_until_s, jobs.deadline_J[job]):
            broken[num_broken] = position
            num_broken += 1
        elif held != count or ends_s != until_s:
            changed_J[job] = True
    return broken[:num_broken]
