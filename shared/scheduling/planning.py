"""Filling many jobs into the same GPUs: keeping schedules that still hold, making room, spending what is left.

Loops over arrays, compiled; what they are for is decided by `admission_plan` and `allocation`.
Axes: J = jobs; K = some of them, in an order.
"""

from typing import NamedTuple

import numpy as np

from shared.scheduling.compiled import Floats, Integers, compiled
from shared.scheduling.filling import (
    OUTAGE_S,
    SLACK_S,
    Jobs,
    Scratch,
    Segments,
    empty_segments,
    fill,
    gpu_seconds,
    minimum_share,
    new_scratch,
)
from shared.scheduling.profile import (
    Profile,
    Schedules,
    change,
    copy_into,
    empty_profile,
    release,
    reserve,
    sweep,
)

WORTH_GIVING_BACK_S = 1.0


class Workspace(NamedTuple):
    """Memory that the loops below need; worth nothing between two calls."""

    profile: Profile
    found: Segments
    other: Segments
    best: Segments
    memory: Scratch


def new_workspace(num_pieces: int) -> Workspace:
    return Workspace(
        empty_profile(num_pieces), empty_segments(), empty_segments(), empty_segments(), new_scratch()
    )


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
def hold_all(schedules: Schedules, jobs: Jobs, jobs_K: Integers, now_s: float) -> Integers:
    """Hold each schedule: positions in jobs_K of those that no longer end on time."""
    broken = np.empty(jobs_K.shape[0], np.int64)
    num_broken = 0
    for position in range(jobs_K.shape[0]):
        job = jobs_K[position]
        ends_s = hold(schedules, jobs, job, now_s)
        if (
            ends_s == np.inf or ends_s > jobs.deadline_J[job]
        ):  # no schedule is none that holds, without a deadline too
            broken[num_broken] = position
            num_broken += 1
    return broken[:num_broken]


@compiled
def write(schedules: Schedules, job: int, segments: Segments, count: int) -> None:
    """Give a job this schedule."""
    schedules.start_JM[job, :count] = segments.start_M[:count]
    schedules.end_JM[job, :count] = segments.end_M[:count]
    schedules.num_gpus_JM[job, :count] = segments.num_gpus_M[:count]
    schedules.count_J[job] = count


@compiled
def fill_in_order(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    order_K: Integers,
    first: int,
    hurried: int,
    work: Workspace,
) -> int:
    """Fill all jobs from position `first` on by minimum shares, one after another: -1, or who does not fit.

    hurried: a job that is filled to end as early as it can, so that it is soon out of the way; -1 for none.
    """
    for position in range(first, order_K.shape[0]):
        job = int(order_K[position])
        by_s = float(jobs.deadline_J[job])
        if job == hurried:
            count = fill(profile, jobs, job, jobs.num_levels_J[job] - 1, by_s, work.found, work.memory)
        else:
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
    hurried: int,
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
        failed = fill_in_order(profile, schedules, jobs, order_K, num_kept, hurried, work)
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


@compiled
def overloaded(jobs: Jobs, order_K: Integers, from_position: int, now_s: float, num_gpus: int) -> bool:
    """Whether jobs by deadline need more GPU-seconds up to some deadline than there are, by lower bounds."""
    needed = 0.0
    for position in range(order_K.shape[0]):
        job = int(order_K[position])
        window_s = float(jobs.deadline_J[job]) - now_s
        needed += least_gpu_seconds(jobs, job, window_s)
        if position >= from_position and needed > num_gpus * window_s * (1.0 + 1e-9):
            return True
    return False


@compiled
def step_up(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    job: int,
    hysteresis_s: float,
    out: Segments,
    work: Workspace,
) -> tuple[float, int]:
    """The next step up now that pays: GPU-seconds saved for each GPU added, and its segments; (-inf, -1) if none."""
    now_s = profile.start_B[0]
    count = schedules.count_J[job]
    last = jobs.num_levels_J[job] - 1
    if count == 0:
        return -np.inf, -1
    share = schedules.num_gpus_JM[job, 0] if schedules.start_JM[job, 0] <= now_s else 0
    if share >= jobs.levels_JL[job, last]:
        return -np.inf, -1
    level = 0
    while jobs.levels_JL[job, level] <= share:
        level += 1
    if jobs.levels_JL[job, level] - share > profile.free_B[0]:
        return -np.inf, -1
    highest, old_gpu_seconds = 0, 0.0
    for segment in range(count):
        held = schedules.num_gpus_JM[job, segment]
        highest = max(highest, held)
        old_gpu_seconds += held * (schedules.end_JM[job, segment] - schedules.start_JM[job, segment])
    old_end_s = schedules.end_JM[job, count - 1]
    room = work.profile
    copy_into(room, profile)
    release(room, schedules, job)
    unmoved = -1
    for candidate in range(level, last + 1):
        if jobs.levels_JL[job, candidate] == jobs.held_J[job] and jobs.held_J[job] <= room.free_B[0]:
            unmoved = candidate  # staying as it is comes before any resize
    for attempt in range(-1, last + 1 - level):
        candidate = unmoved if attempt < 0 else level + attempt
        if candidate < 0:
            continue
        if jobs.levels_JL[job, candidate] > room.free_B[0]:
            break
        cap = candidate
        while jobs.levels_JL[job, cap] < highest:
            cap += 1
        by_s = old_end_s if attempt < 0 else old_end_s - hysteresis_s
        found = fill(room, jobs, job, cap, by_s, out, work.memory)
        if found > 0 and out.start_M[0] <= now_s and out.num_gpus_M[0] > share:
            gain = (old_gpu_seconds - gpu_seconds(out, found)) / (out.num_gpus_M[0] - share)
            return gain, found
    return -np.inf, -1


@compiled
def spend(
    profile: Profile, schedules: Schedules, jobs: Jobs, jobs_K: Integers, hysteresis_s: float, work: Workspace
) -> None:
    """Hand out the GPUs left now, one step at a time, each to the job with the greatest marginal return.

    A step that was outdated by another is valued again before it is taken. Source: ElasticFlow, Algorithm 2.
    """
    num_jobs = len(jobs_K)
    gains: Floats = np.empty(num_jobs, np.float64)
    if profile.free_B[0] <= 0:
        return
    for index in range(num_jobs):
        gains[index], _ = step_up(profile, schedules, jobs, jobs_K[index], hysteresis_s, work.best, work)
    while profile.free_B[0] > 0 and num_jobs > 0:
        index = int(np.argmax(gains))
        if gains[index] == -np.inf:
            return
        job = int(jobs_K[index])
        promised_gain = float(gains[index])
        gains[index], count = step_up(profile, schedules, jobs, job, hysteresis_s, work.best, work)
        if count >= 0 and gains[index] >= promised_gain:
            release(profile, schedules, job)
            write(schedules, job, work.best, count)
            reserve(profile, schedules, job)
            gains[index], _ = step_up(profile, schedules, jobs, job, hysteresis_s, work.best, work)


@compiled
def start(profile: Profile, schedules: Schedules, jobs: Jobs, jobs_K: Integers, work: Workspace) -> None:
    """Give each job in turn its smallest level, if that is free now for long enough to be of use."""
    now_s = profile.start_B[0]
    for job in jobs_K:
        if profile.free_B[0] <= 0:
            return
        count = fill(profile, jobs, job, 0, np.inf, work.found, work.memory)
        if count > 0 and work.found.start_M[0] <= now_s:
            write(schedules, job, work.found, count)
            reserve(profile, schedules, job)


@compiled
def hasten(profile: Profile, schedules: Schedules, jobs_K: Integers, within_s: float) -> None:
    """Make changes now that are planned within so short a time, where the GPUs are free already.

    Jobs end a little before their planned end; who comes next need not wait for it. Nobody ends later by it.
    """
    now_s = profile.start_B[0]
    for job in jobs_K:
        starts, num_gpus = schedules.start_JM[job], schedules.num_gpus_JM[job]
        count = schedules.count_J[job]
        if count == 0:
            continue
        next_one = 0 if starts[0] > now_s else 1
        if next_one == count or starts[next_one] > now_s + within_s:
            continue
        held = num_gpus[0] if next_one == 1 else 0
        begins_s = starts[next_one]
        if next_one == 1 and schedules.end_JM[job, 0] < begins_s:
            continue
        piece, lowest = 0, profile.free_B[0]
        while piece < profile.size[0] and profile.start_B[piece] < begins_s:
            lowest = min(lowest, profile.free_B[piece])
            piece += 1
        if lowest < num_gpus[next_one] - held:
            continue
        change(profile, now_s, begins_s, held - num_gpus[next_one])
        starts[next_one] = now_s
        if next_one == 1:
            for segment in range(1, count):
                starts[segment - 1], num_gpus[segment - 1] = starts[segment], num_gpus[segment]
                schedules.end_JM[job, segment - 1] = schedules.end_JM[job, segment]
            schedules.count_J[job] = count - 1
