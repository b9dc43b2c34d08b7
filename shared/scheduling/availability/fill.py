"""Filling jobs into the free GPUs: one job exactly, and many jobs one after another."""

from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_CHANGES,
    MAX_SEGMENTS,
    AvailabilityProfile,
    Schedules,
    Scratch,
    ScratchArrays,
    Segments,
    copy_into,
    copy_schedule,
    limit_from,
    reserve,
    sweep,
)
from elasticflow.shared.scheduling.compiled_loops import Flags, Floats, Integers, compiled

# --- fill one job -------------------------------------------------------------------------------------
# Fill one job into the free GPUs: the level (number of GPUs) that it holds at each instant.
#
# Up to a cap, the job may hold any of its levels that is free; each change of level, also from zero, stops it for the
# resize cost of the new level. Among all ways to change levels at breakpoints, `fill` finds one with the earliest end.
# A job that starts over at each change holds one level from its last change to its end. For one level, the work done
# since a change is a straight line over time. Only the highest line of each level can be part of an optimal schedule,
# so that one pass over the pieces is sufficient. Axes: J = jobs; L = levels of a job, ascending and faster; M =
# segments. The work includes an allowance for failures, one for moves away from nodes that leave before the end, and
# one for migrations that free a block for another job. Source: ElasticFlow, Algorithm 1 (progressive filling), over a
# step function, with every resize charged.

SLACK_S = 1e-3
"""A new schedule has this many seconds of spare work at the highest throughput. It covers the rounding of
floating-point
sums, so that exact arithmetic finds every schedule sufficient; the checker tolerates nothing.
"""

OUTAGE_S = 600.0
"""With k reserve nodes, promises hold if at most k nodes are down at once, and a failed node counts as down for at
least this long. So at most k + k * t / OUTAGE_S failures hit a job within t seconds (docs/adr/0013).
"""

# returned instead of a number of segments
LATE = -1
TOO_MANY = -2  # the schedule would exceed MAX_SEGMENTS


class Jobs(NamedTuple):
    """The inputs of filling for some jobs at one instant; levels beyond `num_levels_J` are padding."""

    levels_JL: Integers  # numbers of GPUs
    rates_JL: Floats  # iterations/s
    costs_JL: Floats  # seconds without progress at a change to this level
    num_levels_J: Integers
    remaining_J: Floats  # iterations
    held_J: Integers  # GPUs
    stalled_until_J: Floats  # no progress before: a resize is in progress
    deadline_J: Floats  # the planned end; inf: none
    lost_JL: Floats  # iterations that k failures cost at most while it holds up to this level
    moved_JL: Floats  # iterations that one move to other GPUs costs at most while it holds up to this level
    migrated_JL: Floats  # and one migration
    since_migration_J: Floats  # seconds
    migration_budget_J: Floats  # the part of its time that migrations may take; 0: it never migrates (docs/adr/0107)
    unsaved_J: Floats  # iterations that its next change of GPUs loses (docs/adr/0090)
    starts_over_J: Flags  # whether any change loses all iterations: nothing is saved
    moves_s: Floats  # ascending: when nodes leave, so that each job may have to move once (docs/adr/0072)


@compiled
def migrated_iterations_per_s(jobs: Jobs, job: int, cap: int) -> float:
    """The iterations that its budget lets migrations cost each second, while the job holds up to a level.

    They add up from its last migration to one migration at once.
    """
    return jobs.migration_budget_J[job] * jobs.rates_JL[job, cap]


class Limits(NamedTuple):
    """What a schedule may use: levels up to index `cap`, and time until `by_s`."""

    cap: int
    by_s: float


@compiled
def fill(
    availability: AvailabilityProfile, jobs: Jobs, job: int, limits: Limits, out: Segments, memory: Scratch
) -> int:
    """Find the schedule within these limits that has the earliest end.

    Returns the number of segments; LATE if the job ends after by_s; TOO_MANY if the schedule exceeds MAX_SEGMENTS.
    """
    cap, by_s = limits
    start_B, free_B, num_pieces = availability.start_B, availability.free_B, availability.size[0]
    levels, rates, costs = jobs.levels_JL[job], jobs.rates_JL[job], jobs.costs_JL[job]
    line, line_change = memory.line_L, memory.line_change_L
    now_s = start_B[0]
    if jobs.remaining_J[job] <= 0.0:
        return 0
    lost, moved, migrated = jobs.lost_JL[job, cap], jobs.moved_JL[job, cap], jobs.migrated_JL[job, cap]
    left = jobs.remaining_J[job] + SLACK_S * rates[jobs.num_levels_J[job] - 1] + lost
    migrated_per_s = migrated_iterations_per_s(jobs, job, cap)
    left += min(migrated, migrated_per_s * jobs.since_migration_J[job])
    lost_per_s = lost / OUTAGE_S + migrated_per_s  # these grow with the duration
    if num_pieces + 4 * MAX_SEGMENTS > start_B.shape[0]:  # no capacity to reserve the result
        return TOO_MANY
    window_s = by_s - now_s
    for level in range(cap + 1):
        line_change[level] = -1
    work, last, last_end_s = 0.0, -1, 0.0  # the most work so far, after which change, until when
    num_changes, piece = 0, 0
    while piece < num_pieces:
        begins_s = start_B[piece]
        start_s = begins_s - now_s
        most = -1
        while most < cap and levels[most + 1] <= free_B[piece]:
            most += 1
        piece += 1
        while (
            piece < num_pieces
            and (most < 0 or free_B[piece] >= levels[most])
            and (most == cap or free_B[piece] < levels[most + 1])
        ):
            piece += 1
        end_s = start_B[piece] - now_s if piece < num_pieces else np.inf
        for level in range(cap + 1):
            if line_change[level] >= 0:
                done = line[level] + rates[level] * start_s
                if done > work:
                    work, last, last_end_s = done, line_change[level], begins_s
                if level > most:
                    line_change[level] = -1
        if left + lost_per_s * start_s - work > (rates[cap] - lost_per_s) * (window_s - start_s):
            return LATE
        for level in range(most + 1):
            unmoved = start_s == 0.0 and levels[level] == jobs.held_J[job]
            ready_s = start_s + costs[level]
            if unmoved:
                ready_s = max(jobs.stalled_until_J[job] - now_s, 0.0)
            begun, after = work - rates[level] * ready_s, last
            if not unmoved and (last < 0 or jobs.starts_over_J[job]):
                begun, after = -jobs.unsaved_J[job] - rates[level] * ready_s, -1
            if line_change[level] < 0 or begun > line[level]:
                if num_changes == MAX_CHANGES:
                    return TOO_MANY
                memory.change_s[num_changes] = begins_s  # the value itself: a sum would round
                memory.change_level[num_changes] = level
                memory.change_after[num_changes] = after
                memory.after_end_s[num_changes] = last_end_s
                line[level], line_change[level] = begun, num_changes
                num_changes += 1
        done_s, final = np.inf, -1
        for level in range(most + 1):
            gained_per_s = rates[level] - lost_per_s
            level_done_s = (left - line[level]) / gained_per_s if gained_per_s > 0.0 else np.inf
            num_moves = 0
            while num_moves < jobs.moves_s.shape[0] and jobs.moves_s[num_moves] - now_s < level_done_s < np.inf:
                num_moves += 1
                level_done_s = (left + num_moves * moved - line[level]) / gained_per_s
            if level_done_s < done_s:
                done_s, final = level_done_s, line_change[level]
        if final >= 0 and done_s <= end_s:
            if done_s > window_s:
                return LATE
            ends_s = now_s + done_s
            if piece < num_pieces:
                ends_s = min(ends_s, start_B[piece])
            # Rounding may leave work for an instant: the slack of the segment before covers it.
            if ends_s <= memory.change_s[final] and memory.change_after[final] >= 0:
                final, ends_s = memory.change_after[final], memory.after_end_s[final]
            return _trace_back(memory, levels, final, ends_s, out)
    return LATE


@compiled
def earliest_end_s(
    availability: AvailabilityProfile, jobs: Jobs, job: int, by_s: float, out: Segments, memory: Scratch
) -> float:
    """The earliest end of the job over all caps; inf if it does not end by `by_s`."""
    earliest_s, num_caps, count = np.inf, jobs.num_levels_J[job], LATE
    may_move, may_migrate = jobs.moves_s.shape[0] > 0, jobs.migration_budget_J[job] > 0.0
    for cap in range(num_caps - 1, -1, -1):
        loses_less = cap == num_caps - 1 or jobs.lost_JL[job, cap] < jobs.lost_JL[job, cap + 1]
        loses_less = loses_less or (may_move and jobs.moved_JL[job, cap] < jobs.moved_JL[job, cap + 1])
        loses_less = loses_less or (may_migrate and jobs.migrated_JL[job, cap] < jobs.migrated_JL[job, cap + 1])
        if not loses_less and count != TOO_MANY:
            continue  # the allowance for failures is too large; otherwise fewer GPUs never end sooner
        count = fill(availability, jobs, job, Limits(cap, by_s), out, memory)
        if count >= 0:
            earliest_s = min(earliest_s, out.end_M[count - 1] if count > 0 else availability.start_B[0])
    return earliest_s


@compiled
def most_iterations(
    availability: AvailabilityProfile, jobs: Jobs, job: int, by_s: float, out: Segments, memory: Scratch
) -> int:
    """The number of iterations, within one percent, with which a job that is late with all of its own would be on
    time.
    """
    asked, cap = jobs.remaining_J[job], jobs.num_levels_J[job] - 1
    low, high = 0, int(asked)
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        jobs.remaining_J[job] = middle
        if fill(availability, jobs, job, Limits(cap, by_s), out, memory) >= 0:
            low = middle
        else:
            high = middle
    jobs.remaining_J[job] = asked
    return low


@compiled
def gpu_seconds(segments: Segments, count: int) -> float:
    """GPU-seconds of a schedule, stops included."""
    total = 0.0
    for segment in range(count):
        total += (segments.end_M[segment] - segments.start_M[segment]) * segments.num_gpus_M[segment]
    return total


@compiled
def _trace_back(memory: Scratch, levels: Integers, final: int, ends_s: float, out: Segments) -> int:
    """Write the changes that lead to `final` as segments."""
    count, change = 0, final
    while change >= 0:
        count += 1
        change = memory.change_after[change]
    if count > MAX_SEGMENTS:
        return TOO_MANY
    segment, change, end_s = count - 1, final, ends_s
    while change >= 0:
        out.start_M[segment] = memory.change_s[change]
        out.end_M[segment] = end_s
        out.num_gpus_M[segment] = levels[memory.change_level[change]]
        segment, end_s, change = segment - 1, memory.after_end_s[change], memory.change_after[change]
    return count


# --- minimum share -------------------------------------------------------------------------------------
# The minimum satisfactory share of one job: a schedule that meets its deadline with few GPU-seconds.
#
# Axes: M = segments. Source: ElasticFlow, Algorithm 1, lines 11-22. The algorithm holds one cap throughout; here the
# job may also begin with the cap and end with fewer GPUs, which costs less where the curve is concave.

_HALVINGS = 6  # of the time from which on fewer GPUs are enough


@compiled
def minimum_share(
    availability: AvailabilityProfile, jobs: Jobs, job: int, by_s: float, work: ScratchArrays, least_level: int = 0
) -> int:
    """Find a schedule that ends by `by_s`. Returns the number of segments in `work.found`, or LATE.

    least_level: index of the lowest cap, so that a job ends sooner than it must.

    There is one whenever `fill` finds one. The job stays at its current share where that costs less than a resize.
    `availability` is not `work.availability`.
    """
    out, other, memory = work.found, work.other, work.memory
    num_levels, cap, count = jobs.num_levels_J[job], least_level, LATE
    while count < 0 and cap < num_levels:
        count = fill(availability, jobs, job, Limits(cap, by_s), out, memory)
        cap += 1
    if count <= 0:
        return LATE if count < 0 else 0
    cap -= 1
    for level in range(cap + 1, num_levels):
        if jobs.levels_JL[job, level] == jobs.held_J[job]:
            unmoved = fill(availability, jobs, job, Limits(level, by_s), other, memory)
            if unmoved > 0 and gpu_seconds(other, unmoved) < gpu_seconds(out, count):
                cap, count = level, _copied(out, other, unmoved)
    used = gpu_seconds(out, count)
    for lower in range(least_level, cap):
        most, low_s, high_s = int(jobs.levels_JL[job, lower]), availability.start_B[0], out.end_M[count - 1]
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2.0
            limit_from(work.availability, availability, middle_s, most, by_s)  # fewer GPUs from this instant on
            fewer = fill(work.availability, jobs, job, Limits(cap, by_s), other, memory)
            if fewer <= 0:
                low_s = middle_s
                continue
            high_s = middle_s
            if gpu_seconds(other, fewer) < used:
                used, count = gpu_seconds(other, fewer), _copied(out, other, fewer)
    return count


@compiled
def _copied(out: Segments, other: Segments, count: int) -> int:
    out.start_M[:count] = other.start_M[:count]
    out.end_M[:count] = other.end_M[:count]
    out.num_gpus_M[:count] = other.num_gpus_M[:count]
    return count


# --- fill many jobs -----------------------------------------------------------------------------------
# Fill many jobs into the same GPUs one after another, and move jobs to insert one more. Compiled loops over arrays.
#
# Axes: J = jobs; K = some jobs in order.

GOLDEN_RATIO = 0.6180339887498949  # its multiples are spread evenly between 0 and 1: variety without chance
PATIENT_MISSES = 8  # of one job
MEAN_DISTANCE = 0.2  # of the way to the front


class PlanArrays(NamedTuple):
    """A plan on `num_gpus` GPUs from `now_s` on: availability, schedules and flags change in place.

    Loops take the arrays out of it before they begin: each access counts references.
    """

    availability: AvailabilityProfile  # beside the schedules that are reserved in it
    schedules: Schedules
    changed_J: Flags  # whether the schedule of a row differs from the recorded one
    jobs: Jobs
    work: ScratchArrays
    now_s: float
    num_gpus: int


@compiled
def write_segments(schedules: Schedules, job: int, segments: Segments, count: int) -> None:
    """Store these segments as the schedule of a job."""
    schedules.start_JM[job, :count] = segments.start_M[:count]
    schedules.end_JM[job, :count] = segments.end_M[:count]
    schedules.num_gpus_JM[job, :count] = segments.num_gpus_M[:count]
    schedules.count_J[job] = count


@compiled
def fill_or_report_late(plan: PlanArrays, rows: Integers) -> Integers:
    """Fill these jobs one after another around all others; return those that miss their deadline."""
    availability, schedules, jobs, work = plan.availability, plan.schedules, plan.jobs, plan.work
    changed_J = plan.changed_J
    failed = np.empty(rows.shape[0], np.int64)
    num_failed = 0
    for job in rows:
        by_s = float(jobs.deadline_J[job])
        count = minimum_share(availability, jobs, job, by_s, work)
        if count < 0:
            failed[num_failed] = job
            num_failed += 1
        else:
            write_segments(schedules, job, work.found, count)
            changed_J[job] = True
            reserve(availability, schedules, job)
    return failed[:num_failed]


@compiled
def fill_to_earliest_end(plan: PlanArrays, rows: Integers) -> None:
    """Fill these jobs one after another to end as early as possible; a job that never ends gets no schedule."""
    availability, schedules, jobs = plan.availability, plan.schedules, plan.jobs
    found, memory = plan.work.found, plan.work.memory
    for job in rows:
        cap = int(jobs.num_levels_J[job]) - 1
        count = fill(availability, jobs, job, Limits(cap, np.inf), found, memory)
        write_segments(schedules, job, found, max(count, 0))
        reserve(availability, schedules, job)


@compiled
def fill_one_more(
    availability: AvailabilityProfile,
    with_it: AvailabilityProfile,
    filled: Schedules,
    jobs: Jobs,
    job: int,
    work: ScratchArrays,
) -> bool:
    """Fill one more job without moving another. On success `filled` has its schedule, `with_it` what stays free."""
    by_s = float(jobs.deadline_J[job])
    count = minimum_share(availability, jobs, job, by_s, work)
    if count < 0:
        return False
    write_segments(filled, job, work.found, count)
    copy_into(with_it, availability)
    reserve(with_it, filled, job)
    return True


@compiled
def fill_anew(
    plan: PlanArrays, kept: Schedules, fixed: Integers, order_K: Integers, max_fillings: int
) -> tuple[bool, int]:
    """Fill jobs one after another in this order, then in others, until each of them meets its deadline.

    fixed: jobs that keep their schedules from `kept`. Returns whether an order was found within max_fillings, and how
    many were made; without one, the plan's schedules are invalid. `order_K` is left in the order that succeeded, the
    plan's availability with the GPUs that stay free.
    A job that misses its deadline moves forward by a quarter of the way, and the jobs behind it are filled again.
    After many misses it moves by distances that vary, in turn with another job before it that gets more GPUs.
    Source: D. Joslin and D. Clements, "Squeaky wheel" optimization, JAIR 10, 1999.
    """
    availability, schedules, jobs, work = plan.availability, plan.schedules, plan.jobs, plan.work
    for job in fixed:
        copy_schedule(schedules, job, kept, job)
    num_misses, misses_J = 0, np.zeros(jobs.remaining_J.shape[0], np.int64)
    least_level_J = np.zeros(jobs.remaining_J.shape[0], np.int64)
    first, num_fillings = 0, 0
    while num_fillings < max_fillings:
        sweep(availability, schedules, np.concatenate((fixed, order_K[:first])), plan.now_s, plan.num_gpus)
        position, misses = first, False
        while position < order_K.shape[0] and not misses:
            job = int(order_K[position])
            count = minimum_share(availability, jobs, job, float(jobs.deadline_J[job]), work, least_level_J[job])
            num_fillings, misses = num_fillings + 1, count < 0
            if not misses:
                write_segments(schedules, job, work.found, count)
                reserve(availability, schedules, job)
                position += 1
        if not misses:
            return True, num_fillings
        if position == 0:
            return False, num_fillings
        moved = order_K[position]
        num_misses, misses_J[moved] = num_misses + 1, misses_J[moved] + 1
        first, part = (3 * position) // 4, (num_misses * GOLDEN_RATIO) % 1.0
        if misses_J[moved] > PATIENT_MISSES and misses_J[moved] % 2 == 0:
            first = int(part * position)
            faster = order_K[first]
            least_level_J[faster] = (least_level_J[faster] + 1) % jobs.num_levels_J[faster]
            continue
        if misses_J[moved] > PATIENT_MISSES:
            first = max(position - 1 - int(-np.log(1.0 - part) * MEAN_DISTANCE * position), 0)
        order_K[first + 1 : position + 1] = order_K[first:position].copy()
        order_K[first] = moved
    return False, num_fillings


@compiled
def rows_that_differ(mine: Schedules, other: Schedules, rows: Integers) -> Integers:
    """The rows whose schedules differ between the two."""
    found = np.empty(rows.shape[0], np.int64)
    num_found = 0
    for row in rows:
        count = mine.count_J[row]
        same = count == other.count_J[row]
        for segment in range(count if same else 0):
            same &= (
                mine.start_JM[row, segment] == other.start_JM[row, segment]
                and mine.end_JM[row, segment] == other.end_JM[row, segment]
                and mine.num_gpus_JM[row, segment] == other.num_gpus_JM[row, segment]
            )
        if not same:
            found[num_found] = row
            num_found += 1
    return found[:num_found]


@compiled
def copy_schedules(mine: Schedules, other: Schedules, rows: Integers) -> None:
    """Copy the schedules of these rows from `other`."""
    for row in rows:
        copy_schedule(mine, row, other, row)


@compiled
def gather_schedules(schedules: Schedules, rows: Integers) -> Schedules:
    """The schedules of these rows, one after another."""
    most = 1
    for row in rows:
        most = max(most, schedules.count_J[row])
    shape = (rows.shape[0], most)
    made = Schedules(np.empty(shape), np.empty(shape), np.empty(shape, np.int64), np.empty(shape[0], np.int64))
    for index in range(rows.shape[0]):
        copy_schedule(made, index, schedules, rows[index])
    return made


@compiled
def scatter_schedules(schedules: Schedules, picked: Schedules, rows: Integers) -> None:
    """Store gathered schedules back to these rows."""
    for index in range(rows.shape[0]):
        copy_schedule(schedules, rows[index], picked, index)


@compiled
def total_gpu_seconds(schedules: Schedules, rows: Integers) -> float:
    """GPU-seconds of the schedules of these rows."""
    total = 0.0
    for row in rows:
        for segment in range(schedules.count_J[row]):
            held_s = schedules.end_JM[row, segment] - schedules.start_JM[row, segment]
            total += held_s * schedules.num_gpus_JM[row, segment]
    return total


@compiled
def overloaded(jobs: Jobs, order_K: Integers, arriving_job: int, at_position: int, now_s: float, num_gpus: int) -> bool:
    """Whether lower bounds show that the jobs and one more need more GPU-seconds before some deadline than exist."""
    needed = 0.0
    for position in range(order_K.shape[0] + 1):
        job = arriving_job if position == at_position else int(order_K[position - (position > at_position)])
        window_s = float(jobs.deadline_J[job]) - now_s
        needed += least_gpu_seconds(jobs, job, window_s)
        if position >= at_position and needed > num_gpus * window_s * (1.0 + 1e-9):
            return True
    return False


@compiled
def least_gpu_seconds(jobs: Jobs, job: int, window_s: float) -> float:
    """Lower bound on the GPU-seconds of the remaining work within a window; inf if no level is fast enough.

    Any mix of levels, with free changes, lies on or above the lower convex hull of (throughput, GPUs), and slower is
    cheaper. The bound is therefore the hull at the slowest rate that is fast enough.
    """
    left = jobs.remaining_J[job]
    if left <= 0.0:
        return 0.0
    num_levels = jobs.num_levels_J[job]
    if window_s <= 0.0 or left / window_s > jobs.rates_JL[job, num_levels - 1]:
        return np.inf
    needed = left / window_s
    best = np.inf
    for above in range(num_levels):
        high, gpus_high = jobs.rates_JL[job, above], jobs.levels_JL[job, above]
        if high < needed:
            continue
        best = min(best, gpus_high * needed / high)  # mixed with pauses
        for below in range(above):
            low, gpus_low = jobs.rates_JL[job, below], jobs.levels_JL[job, below]
            if low <= needed:
                best = min(best, gpus_low + (gpus_high - gpus_low) * (needed - low) / (high - low))
    return window_s * best
