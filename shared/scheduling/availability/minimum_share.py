"""The minimum satisfactory share of one job: a schedule that meets its deadline with few GPU-seconds.

Axes: M = segments.
Source: ElasticFlow, Algorithm 1, lines 11-22. The algorithm holds one cap throughout; here the job may also begin with
the cap and end with fewer GPUs, which costs less where the curve is concave.
"""

from elasticflow.shared.scheduling.availability.availability_profile import AvailabilityProfile, limit_from
from elasticflow.shared.scheduling.availability.fill_one_job import LATE, Jobs, fill, gpu_seconds
from elasticflow.shared.scheduling.availability.scratch_arrays import ScratchArrays, Segments
from elasticflow.shared.scheduling.compiled.compile import compiled

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
        count = fill(availability, jobs, job, cap, by_s, out, memory)
        cap += 1
    if count <= 0:
        return LATE if count < 0 else 0
    cap -= 1
    for level in range(cap + 1, num_levels):
        if jobs.levels_JL[job, level] == jobs.held_J[job]:
            unmoved = fill(availability, jobs, job, level, by_s, other, memory)
            if unmoved > 0 and gpu_seconds(other, unmoved) < gpu_seconds(out, count):
                cap, count = level, _copied(out, other, unmoved)
    for lower in range(least_level, cap):
        count = _cheaper_with_fewer_later(availability, jobs, job, cap, lower, by_s, count, work)
    return count


@compiled
def _cheaper_with_fewer_later(
    availability: AvailabilityProfile,
    jobs: Jobs,
    job: int,
    cap: int,
    lower: int,
    by_s: float,
    count: int,
    work: ScratchArrays,
) -> int:
    """Replace the `count` segments in `work.found` by cheaper ones that use at most the level `lower` from some
    instant on. Returns the number of segments.
    """
    used, most = gpu_seconds(work.found, count), int(jobs.levels_JL[job, lower])
    low_s, high_s = availability.start_B[0], work.found.end_M[count - 1]
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2.0
        limit_from(work.availability, availability, middle_s, most, by_s)
        found = fill(work.availability, jobs, job, cap, by_s, work.other, work.memory)
        if found <= 0:
            low_s = middle_s
            continue
        high_s = middle_s
        if gpu_seconds(work.other, found) < used:
            used, count = gpu_seconds(work.other, found), _copied(work.found, work.other, found)
    return count


@compiled
def _copied(out: Segments, other: Segments, count: int) -> int:
    out.start_M[:count] = other.start_M[:count]
    out.end_M[:count] = other.end_M[:count]
    out.num_gpus_M[:count] = other.num_gpus_M[:count]
    return count
