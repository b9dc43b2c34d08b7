"""Fill many jobs into the same GPUs one after another, and move jobs to insert one more. Compiled loops over arrays.

Axes: J = jobs; K = some jobs in order.
"""

from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    Schedules,
    ScratchArrays,
    Segments,
    copy_into,
    copy_schedule,
    reserve,
    sweep,
)
from elasticflow.shared.scheduling.availability.fill_one_job import Jobs, Limits, fill, minimum_share
from elasticflow.shared.scheduling.compiled_loops import Flags, Integers, compiled

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
