"""Spending the GPUs that no promise holds now: on whoever waits, and on the steps up that bring most.

Loops over arrays, compiled; what they are for is decided by `allocation`. changed_J: set for each row that gets another
schedule. Axes: J = jobs; K = some of them, in an order.
Source: ElasticFlow, Algorithm 2.
"""

import numpy as np

from shared.scheduling.compiled import Flags, Floats, Integers, compiled
from shared.scheduling.filling import Jobs, Segments, fill, gpu_seconds
from shared.scheduling.planning import write
from shared.scheduling.profile import (
    MAX_SEGMENTS,
    Profile,
    Schedules,
    change,
    copy_into,
    fewest_free,
    release,
    reserve,
)
from shared.scheduling.workspace import Workspace


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
def hasten(
    profile: Profile, schedules: Schedules, jobs_K: Integers, changed_J: Flags, within_s: float
) -> None:
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
        if num_gpus[next_one] < held:
            continue  # less, and sooner, is later
        begins_s = starts[next_one]
        if next_one == 1 and schedules.end_JM[job, 0] < begins_s:
            continue
        if fewest_free(profile, now_s, begins_s) < num_gpus[next_one] - held:
            continue
        change(profile, now_s, begins_s, held - num_gpus[next_one])
        changed_J[job] = True
        starts[next_one] = now_s
        if next_one == 1:
            for segment in range(1, count):
                starts[segment - 1], num_gpus[segment - 1] = starts[segment], num_gpus[segment]
                schedules.end_JM[job, segment - 1] = schedules.end_JM[job, segment]
            schedules.count_J[job] = count - 1


@compiled
def spend(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    jobs_K: Integers,
    changed_J: Flags,
    hysteresis_s: float,
    work: Workspace,
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
            changed_J[job] = True
            reserve(profile, schedules, job)
            gains[index], _ = step_up(profile, schedules, jobs, job, hysteresis_s, work.best, work)


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
    if (
        profile.size[0] + 4 * MAX_SEGMENTS > profile.start_B.shape[0]
    ):  # no room to reserve what would be found
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
