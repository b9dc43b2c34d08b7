"""Marginal return: GPUs that no promise holds now go to waiting jobs, then to the steps up that save the most
GPU-seconds.

Compiled loops over arrays. changed_J: set for each row whose schedule changes. Axes: J = jobs; K = some jobs in order.
Source: ElasticFlow, Algorithm 2.
"""

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    MAX_SEGMENTS,
    AvailabilityProfile,
    Schedules,
    change,
    copy_into,
    fewest_free,
    release,
    reserve,
)
from elasticflow.shared.scheduling.availability.fill_many_jobs import write_segments
from elasticflow.shared.scheduling.availability.fill_one_job import Jobs, fill, gpu_seconds
from elasticflow.shared.scheduling.availability.scratch_arrays import ScratchArrays, Segments
from elasticflow.shared.scheduling.compiled.compile import Flags, Floats, Integers, compiled


@compiled
def keep_unsaved_work(
    availability: AvailabilityProfile, schedules: Schedules, jobs: Jobs, jobs_K: Integers, work: ScratchArrays
) -> None:
    """Leave jobs that would start over on their GPUs, where that ends them sooner than any change."""
    now_s = availability.start_B[0]
    for job in jobs_K:
        held = jobs.held_J[job]
        if not jobs.starts_over_J[job] or jobs.unsaved_J[job] <= 0.0 or not 0 < held <= availability.free_B[0]:
            continue
        for level in range(jobs.num_levels_J[job]):
            if jobs.levels_JL[job, level] == held:
                count = fill(availability, jobs, job, level, np.inf, work.found, work.memory)
                if count > 0 and work.found.start_M[0] <= now_s and work.found.num_gpus_M[0] == held:
                    write_segments(schedules, job, work.found, count)
                    reserve(availability, schedules, job)


@compiled
def start_waiting_jobs(
    availability: AvailabilityProfile, schedules: Schedules, jobs: Jobs, jobs_K: Integers, work: ScratchArrays
) -> None:
    """Give each job in turn its smallest level, if that is free for long enough to be useful."""
    now_s = availability.start_B[0]
    for job in jobs_K:
        if availability.free_B[0] <= 0:
            return
        count = fill(availability, jobs, job, 0, np.inf, work.found, work.memory)
        if count > 0 and work.found.start_M[0] <= now_s:
            write_segments(schedules, job, work.found, count)
            reserve(availability, schedules, job)


@compiled
def bring_changes_forward(
    availability: AvailabilityProfile,
    schedules: Schedules,
    jobs_K: Integers,
    changed_J: Flags,
    within_s: float,
) -> None:
    """Apply changes now that are planned within `within_s`, where the GPUs are already free.

    Jobs end slightly before their planned end; the next job need not wait for it. No job ends later.
    """
    now_s = availability.start_B[0]
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
            continue  # fewer GPUs sooner would end later
        begins_s = starts[next_one]
        if next_one == 1 and schedules.end_JM[job, 0] < begins_s:
            continue
        if fewest_free(availability, now_s, begins_s) < num_gpus[next_one] - held:
            continue
        change(availability, now_s, begins_s, held - num_gpus[next_one])
        changed_J[job] = True
        starts[next_one] = now_s
        if next_one == 1:
            for segment in range(1, count):
                starts[segment - 1], num_gpus[segment - 1] = starts[segment], num_gpus[segment]
                schedules.end_JM[job, segment - 1] = schedules.end_JM[job, segment]
            schedules.count_J[job] = count - 1


@compiled
def allocate_by_marginal_return(
    availability: AvailabilityProfile,
    schedules: Schedules,
    jobs: Jobs,
    jobs_K: Integers,
    changed_J: Flags,
    hysteresis_s: float,
    work: ScratchArrays,
) -> None:
    """Distribute the GPUs that are free now, one step at a time, to the job with the greatest marginal return.

    A step that another one made stale is valued again before it is taken. Source: ElasticFlow, Algorithm 2.
    """
    num_jobs = len(jobs_K)
    gains: Floats = np.empty(num_jobs, np.float64)
    if availability.free_B[0] <= 0:
        return
    for index in range(num_jobs):
        gains[index], _ = next_paying_step(availability, schedules, jobs, jobs_K[index], hysteresis_s, work.best, work)
    while availability.free_B[0] > 0 and num_jobs > 0:
        index = int(np.argmax(gains))
        if gains[index] == -np.inf:
            return
        job = int(jobs_K[index])
        promised_gain = float(gains[index])
        gains[index], count = next_paying_step(availability, schedules, jobs, job, hysteresis_s, work.best, work)
        if count >= 0 and gains[index] >= promised_gain:
            release(availability, schedules, job)
            write_segments(schedules, job, work.best, count)
            changed_J[job] = True
            reserve(availability, schedules, job)
            gains[index], _ = next_paying_step(availability, schedules, jobs, job, hysteresis_s, work.best, work)


@compiled
def next_paying_step(
    availability: AvailabilityProfile,
    schedules: Schedules,
    jobs: Jobs,
    job: int,
    hysteresis_s: float,
    out: Segments,
    work: ScratchArrays,
) -> tuple[float, int]:
    """The next step up that pays: GPU-seconds saved for each added GPU, and its segments; (-inf, -1) if none."""
    now_s = availability.start_B[0]
    count = schedules.count_J[job]
    last = jobs.num_levels_J[job] - 1
    if count == 0:
        return -np.inf, -1
    share = schedules.num_gpus_JM[job, 0] if schedules.start_JM[job, 0] <= now_s else 0
    if share >= jobs.levels_JL[job, last]:
        return -np.inf, -1
    if availability.size[0] + 4 * MAX_SEGMENTS > availability.start_B.shape[0]:  # no capacity to reserve the result
        return -np.inf, -1
    level = 0
    while jobs.levels_JL[job, level] <= share:
        level += 1
    if jobs.levels_JL[job, level] - share > availability.free_B[0]:
        return -np.inf, -1
    highest, old_gpu_seconds = 0, 0.0
    for segment in range(count):
        held = schedules.num_gpus_JM[job, segment]
        highest = max(highest, held)
        old_gpu_seconds += held * (schedules.end_JM[job, segment] - schedules.start_JM[job, segment])
    old_end_s = schedules.end_JM[job, count - 1]
    without_it = work.availability
    copy_into(without_it, availability)
    release(without_it, schedules, job)
    unmoved = -1
    for candidate in range(level, last + 1):
        if jobs.levels_JL[job, candidate] == jobs.held_J[job] and jobs.held_J[job] <= without_it.free_B[0]:
            unmoved = candidate  # the unchanged share is compared before any resize
    for attempt in range(-1, last + 1 - level):
        candidate = unmoved if attempt < 0 else level + attempt
        if candidate < 0:
            continue
        if jobs.levels_JL[job, candidate] > without_it.free_B[0]:
            break
        cap = candidate
        while jobs.levels_JL[job, cap] < highest:
            cap += 1
        by_s = old_end_s if attempt < 0 else old_end_s - hysteresis_s
        found = fill(without_it, jobs, job, cap, by_s, out, work.memory)
        if found > 0 and out.start_M[0] <= now_s and out.num_gpus_M[0] > share:
            gain = (old_gpu_seconds - gpu_seconds(out, found)) / (out.num_gpus_M[0] - share)
            return gain, found
    return -np.inf, -1
