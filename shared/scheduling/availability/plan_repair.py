"""Repair of a plan: keep the recorded schedules that still hold, extend or trim them, and schedule late jobs first.

Compiled loops over arrays. Axes: J = jobs; K = some jobs in order.
"""

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    Schedules,
    fewest_free,
    release,
    reserve,
    sweep,
)
from elasticflow.shared.scheduling.availability.fill import (
    OUTAGE_S,
    SLACK_S,
    Jobs,
    PlanArrays,
    fill_anew,
    fill_or_report_late,
    fill_to_earliest_end,
    migrated_iterations_per_s,
)
from elasticflow.shared.scheduling.compiled_loops import Flags, Integers, compiled

WORTH_MOVING_S = 1.0  # gain of all late jobs together that justifies moving the others


@compiled
def late_jobs_first(
    plan: PlanArrays, kept: Schedules, reserved: Integers, late_K: Integers, order_K: Integers, max_fillings: int
) -> bool:
    """Fill the late jobs one after another, each to end as early as possible, and all other jobs behind them.

    kept: the schedules before. reserved: rows whose schedules are already in the plan and stay.
    Returns whether all other jobs meet their deadlines and the late jobs end earlier than before. The plan's
    availability is left with the GPUs that stay free.
    """
    schedules = plan.schedules
    sweep(plan.availability, schedules, reserved, plan.now_s, plan.num_gpus)
    fill_to_earliest_end(plan, late_K)
    sooner_s = 0.0
    for job in late_K:
        before, now = kept.count_J[job], schedules.count_J[job]
        if before > 0 and now > 0:
            sooner_s += kept.end_JM[job, before - 1] - schedules.end_JM[job, now - 1]
    if sooner_s <= WORTH_MOVING_S:
        return False
    settled = np.concatenate((late_K, reserved))
    fits, _ = fill_anew(plan, schedules, settled, order_K, max_fillings)
    return fits


WORTH_GIVING_BACK_S = 1.0
FAR_BEHIND_S = 1.0  # reports of whole iterations and starts of workers explain less


@compiled
def repair_plan(
    plan: PlanArrays, order_K: Integers, reserved: Integers, covers_moves: bool
) -> tuple[Integers, Integers, bool]:
    """Keep schedules that still hold, extend those that hold if they run a little longer, and fill the other jobs in
    order.

    reserved: rows that keep their schedules in any case. covers_moves: a schedule holds only if it allows for all
    moves.
    Returns the positions of the schedules that do not hold, those of the jobs that are far behind theirs, and whether
    all jobs fit. A schedule is extended beside all recorded ones: a job that is far behind takes nothing from others.
    """
    availability, schedules, jobs = plan.availability, plan.schedules, plan.jobs
    changed_J, now_s, num_gpus = plan.changed_J, plan.now_s, plan.num_gpus
    drop_past(schedules, order_K, now_s)
    broken, far_behind = trim_all(plan, order_K, covers_moves)
    all_fit = sweep(availability, schedules, np.concatenate((order_K, reserved)), now_s, num_gpus) >= 0
    if not all_fit:
        others = np.concatenate((np.delete(order_K, broken), reserved))
        if sweep(availability, schedules, others, now_s, num_gpus) < 0:
            return broken, far_behind, False
    num_short = 0
    for position in broken:
        job = int(order_K[position])
        if all_fit:
            release(availability, schedules, job)
        if not extend_last_segment(availability, schedules, jobs, job, changed_J, covers_moves):
            broken[num_short] = position
            num_short += 1
    short = broken[:num_short]
    late = fill_or_report_late(plan, order_K[short])
    return short, far_behind, len(late) == 0


@compiled
def extend_last_segment(
    availability: AvailabilityProfile, schedules: Schedules, jobs: Jobs, job: int, changed_J: Flags, covers_moves: bool
) -> bool:
    """Hold the last share for as long as needed if the job then meets its deadline and the GPUs are free.

    Progress is reported in whole iterations: nearly every job seems slightly behind its plan.
    """
    now_s = availability.start_B[0]
    ends_s, count = trim_to_remaining_work(schedules, jobs, job, covers_moves, now_s), schedules.count_J[job]
    if count == 0 or ends_s == np.inf or ends_s > jobs.deadline_J[job]:
        return False
    until_s = min(ends_s + SLACK_S, jobs.deadline_J[job])
    starts, ends, num_gpus = schedules.start_JM[job], schedules.end_JM[job], schedules.num_gpus_JM[job]
    for segment in range(count):
        free_until_s = ends[segment] if segment < count - 1 else until_s
        if fewest_free(availability, starts[segment], free_until_s) < num_gpus[segment]:
            return False
    ends[count - 1], changed_J[job] = until_s, True
    reserve(availability, schedules, job)
    return True


@compiled
def extend_where_possible(plan: PlanArrays, jobs_K: Integers) -> None:
    """Hold the last share of each job for as long as its allowance for moves needs, where the GPUs are free."""
    availability, schedules, jobs = plan.availability, plan.schedules, plan.jobs
    changed_J, now_s = plan.changed_J, plan.now_s
    for job in jobs_K:
        count = schedules.count_J[job]
        until_s = schedules.end_JM[job, count - 1] if count else now_s
        if trim_to_remaining_work(schedules, jobs, job, True, now_s) <= until_s:
            continue
        release(availability, schedules, job)
        if not extend_last_segment(availability, schedules, jobs, job, changed_J, True):
            reserve(availability, schedules, job)


@compiled
def drop_past(schedules: Schedules, jobs_K: Integers, now_s: float) -> None:
    """Remove the past from the schedules of these jobs."""
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
def trim_to_remaining_work(schedules: Schedules, jobs: Jobs, job: int, covers_moves: bool, now_s: float) -> float:
    """When the job ends under its schedule; a schedule that is too long is shortened. inf if it holds no schedule.

    The end is later than the schedule's own if the last share has to be held for longer.
    The schedule keeps the allowances for failures, moves and migrations that `fill` requires beyond the remaining work.
    It holds without those for failures and migrations, and unless `covers_moves` without that for moves.
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
    all_left = left + jobs.unsaved_J[job]
    highest = highest_level(schedules, jobs, job)
    lost, moved = jobs.lost_JL[job, highest], jobs.moved_JL[job, highest]
    migrated_per_s = migrated_iterations_per_s(jobs, job, highest)
    lost_per_s = lost / OUTAGE_S + migrated_per_s
    lost += min(jobs.migrated_JL[job, highest], migrated_per_s * jobs.since_migration_J[job])
    done, needed_until_s = False, np.inf
    for segment in range(count):
        level = 0
        while level < jobs.num_levels_J[job] and jobs.levels_JL[job, level] != num_gpus[segment]:
            level += 1
        if level == jobs.num_levels_J[job]:
            return np.inf  # the curve no longer has this level
        if num_gpus[segment] != held or starts[segment] > previous_end_s:
            ready_s = starts[segment] + jobs.costs_JL[job, level]
            if segment == 0 or jobs.starts_over_J[job]:
                left = all_left
        working_s = max(starts[segment], ready_s)
        rate = jobs.rates_JL[job, level]
        enough = left + lost + lost_per_s * (working_s - now_s)
        gained_per_s = rate - lost_per_s
        needed = left
        for move_s in jobs.moves_s:
            if gained_per_s > 0.0 and move_s < working_s + enough / gained_per_s:
                enough += moved
                needed += moved if covers_moves else 0.0
        done = done or needed <= rate * (ends[segment] - working_s)
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
def highest_level(schedules: Schedules, jobs: Jobs, job: int) -> int:
    """The highest level of this schedule: what failures and moves cost at most follows from it."""
    highest, level = 0, 0
    for segment in range(schedules.count_J[job]):
        highest = max(highest, schedules.num_gpus_JM[job, segment])
    while level < jobs.num_levels_J[job] - 1 and jobs.levels_JL[job, level] < highest:
        level += 1
    return level


@compiled
def trim_all(plan: PlanArrays, jobs_K: Integers, covers_moves: bool) -> tuple[Integers, Integers]:
    """Trim each schedule; return the positions in jobs_K of those that no longer end on time, and of jobs far behind.

    These would end long after their deadlines if they held their last shares for as long as needed.
    """
    schedules, jobs, changed_J, now_s = plan.schedules, plan.jobs, plan.changed_J, plan.now_s
    broken, far_behind = np.empty(jobs_K.shape[0], np.int64), np.empty(jobs_K.shape[0], np.int64)
    num_broken, num_far_behind = 0, 0
    for position in range(jobs_K.shape[0]):
        job = jobs_K[position]
        count = schedules.count_J[job]
        until_s = schedules.end_JM[job, count - 1] if count else now_s
        ends_s = trim_to_remaining_work(schedules, jobs, job, covers_moves, now_s)
        held = schedules.count_J[job]
        held_until_s = schedules.end_JM[job, held - 1] if held else now_s
        if ends_s > min(held_until_s, jobs.deadline_J[job]):
            broken[num_broken] = position
            num_broken += 1
            if ends_s > jobs.deadline_J[job] + FAR_BEHIND_S:
                far_behind[num_far_behind] = position
                num_far_behind += 1
        elif held != count or ends_s != until_s:
            changed_J[job] = True
    return broken[:num_broken], far_behind[:num_far_behind]
