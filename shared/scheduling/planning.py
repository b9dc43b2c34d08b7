"""Filling many jobs into the same GPUs, one after another, and making room for one more.

Loops over arrays, compiled; what they are for is decided by `admission_plan`.
Axes: J = jobs; K = some of them, in an order.
"""

import numpy as np

from shared.scheduling.compiled import Flags, Integers, compiled
from shared.scheduling.filling import Jobs, Segments, fill, minimum_share
from shared.scheduling.profile import Profile, Schedules, copy_into, copy_schedule, reserve, sweep
from shared.scheduling.workspace import Workspace


@compiled
def write(schedules: Schedules, job: int, segments: Segments, count: int) -> None:
    """Give a job this schedule."""
    schedules.start_JM[job, :count] = segments.start_M[:count]
    schedules.end_JM[job, :count] = segments.end_M[:count]
    schedules.num_gpus_JM[job, :count] = segments.num_gpus_M[:count]
    schedules.count_J[job] = count


@compiled
def fill_in(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    rows: Integers,
    changed_J: Flags,
    work: Workspace,
) -> Integers:
    """Fill these around all others, one after another: those that find no room on time."""
    failed = np.empty(rows.shape[0], np.int64)
    num_failed = 0
    for job in rows:
        by_s = float(jobs.deadline_J[job])
        count = minimum_share(profile, jobs, job, by_s, work.found, work.other, work.memory)
        if count < 0:
            failed[num_failed] = job
            num_failed += 1
        else:
            write(schedules, job, work.found, count)
            changed_J[job] = True
            reserve(profile, schedules, job)
    return failed[:num_failed]


@compiled
def fill_soonest(profile: Profile, schedules: Schedules, jobs: Jobs, rows: Integers, work: Workspace) -> None:
    """Fill these into what is free, one after another, each to end as early as it can; who never does gets none."""
    for job in rows:
        cap = int(jobs.num_levels_J[job]) - 1
        count = fill(profile, jobs, job, cap, np.inf, work.found, work.memory)
        write(schedules, job, work.found, max(count, 0))
        reserve(profile, schedules, job)


@compiled
def fill_around(
    profile: Profile, with_it: Profile, filled: Schedules, jobs: Jobs, job: int, work: Workspace
) -> bool:
    """Fill one more, without moving anybody: whether it fits. Then `filled` has it, `with_it` is what it leaves."""
    by_s = float(jobs.deadline_J[job])
    count = minimum_share(profile, jobs, job, by_s, work.found, work.other, work.memory)
    if count < 0:
        return False
    write(filled, job, work.found, count)
    copy_into(with_it, profile)
    reserve(with_it, filled, job)
    return True


@compiled
def fill_in_order(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    order_K: Integers,
    first: int,
    work: Workspace,
) -> int:
    """Fill all jobs from position `first` on by minimum shares, one after another: -1, or who does not fit."""
    for position in range(first, order_K.shape[0]):
        job = int(order_K[position])
        by_s = float(jobs.deadline_J[job])
        count = minimum_share(profile, jobs, job, by_s, work.found, work.other, work.memory)
        if count < 0:
            return position
        write(schedules, job, work.found, count)
        reserve(profile, schedules, job)
    return -1


@compiled
def fill_anew(
    profile: Profile,
    kept: Schedules,
    schedules: Schedules,
    jobs: Jobs,
    settled: Integers,
    order_K: Integers,
    num_kept: int,
    tries: int,
    now_s: float,
    num_gpus: int,
    work: Workspace,
) -> int:
    """Fill jobs in this order, the first `num_kept` keeping what they have: how many keep it in the end, or -1.

    settled: jobs beside them that keep what they have in any case.
    A job that does not fit moves up, half the way to the front, and all from there on are filled again, at most
    `tries` times in all. `order_K` is left in the order that succeeded, `profile` with what is free then.
    """
    for _ in range(tries):
        sweep(profile, kept, np.concatenate((settled, order_K[:num_kept])), now_s, num_gpus)
        failed = fill_in_order(profile, schedules, jobs, order_K, num_kept, work)
        if failed < 0:
            return num_kept
        if failed == 0:
            return -1
        earlier = failed // 2
        moved = order_K[failed]
        order_K[earlier + 1 : failed + 1] = order_K[earlier:failed].copy()
        order_K[earlier] = moved
        num_kept = min(num_kept, earlier)
    return -1


@compiled
def unlike(mine: Schedules, other: Schedules, rows: Integers) -> Integers:
    """Which of these rows have another schedule in one than in the other."""
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
def take(mine: Schedules, other: Schedules, rows: Integers) -> None:
    """Give these rows the schedules that they have in `other`."""
    for row in rows:
        copy_schedule(mine, row, other, row)


@compiled
def picked(schedules: Schedules, rows: Integers) -> Schedules:
    """The schedules of these rows, one after another."""
    most = 1
    for row in rows:
        most = max(most, schedules.count_J[row])
    shape = (rows.shape[0], most)
    made = Schedules(
        np.empty(shape), np.empty(shape), np.empty(shape, np.int64), np.empty(shape[0], np.int64)
    )
    for index in range(rows.shape[0]):
        copy_schedule(made, index, schedules, rows[index])
    return made


@compiled
def put(schedules: Schedules, picked: Schedules, rows: Integers) -> None:
    """Give these rows the schedules that were picked."""
    for index in range(rows.shape[0]):
        copy_schedule(schedules, rows[index], picked, index)


@compiled
def overloaded(
    jobs: Jobs, order_K: Integers, newcomer: int, at_position: int, now_s: float, num_gpus: int
) -> bool:
    """Whether jobs by deadline and one more among them need more GPU-seconds up to some deadline than there are, by
    lower bounds."""
    needed = 0.0
    for position in range(order_K.shape[0] + 1):
        job = newcomer if position == at_position else int(order_K[position - (position > at_position)])
        window_s = float(jobs.deadline_J[job]) - now_s
        needed += least_gpu_seconds(jobs, job, window_s)
        if position >= at_position and needed > num_gpus * window_s * (1.0 + 1e-9):
            return True
    return False


@compiled
def least_gpu_seconds(jobs: Jobs, job: int, window_s: float) -> float:
    """Lower bound on the GPU-seconds of the work that is left, done within a window; inf if no level is so fast.

    Any mix of levels, changed for free, lies on or above the lower convex hull of (throughput, GPUs), and the slower
    the cheaper: so the bound is the hull at the slowest rate that is fast enough.
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
        best = min(best, gpus_high * needed / high)  # mixed with standing still
        for below in range(above):
            low, gpus_low = jobs.rates_JL[job, below], jobs.levels_JL[job, below]
            if low <= needed:
                best = min(best, gpus_low + (gpus_high - gpus_low) * (needed - low) / (high - low))
    return window_s * best
