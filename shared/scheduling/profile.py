"""GPUs not yet promised, as a step function of time, in arrays that change in place.

Time is continuous: a breakpoint at each instant at which a promise begins or ends, and no grid. Who gets the GPUs is
decided elsewhere (`filling`, `planning`).
Axes: B = pieces between breakpoints, the last one without end; J = jobs; M = segments of one job's schedule.
"""

from typing import NamedTuple

import numpy as np

from shared.scheduling.compiled import Floats, Integers, compiled

MAX_SEGMENTS = 64  # of one schedule: each costs a resize, so a schedule of more is of no use


class Profile(NamedTuple):
    """`free_B[b]` GPUs are free from `start_B[b]` on; only the first `size[0]` pieces count."""

    start_B: Floats
    free_B: Integers
    size: Integers


class Schedules(NamedTuple):
    """GPUs held by each job over time: `count_J[j]` disjoint segments in order."""

    start_JM: Floats
    end_JM: Floats
    num_gpus_JM: Integers
    count_J: Integers


def empty_profile(num_pieces: int) -> Profile:
    """Room for so many pieces."""
    return Profile(np.empty(num_pieces), np.empty(num_pieces, np.int64), np.zeros(1, np.int64))


def empty_schedules(num_jobs: int) -> Schedules:
    """Room for the schedules of so many jobs, none of which holds a GPU."""
    shape = (num_jobs, MAX_SEGMENTS)
    return Schedules(
        np.empty(shape), np.empty(shape), np.empty(shape, np.int64), np.zeros(num_jobs, np.int64)
    )


@compiled
def reset(profile: Profile, now_s: float, num_gpus: int) -> None:
    """All GPUs free from now on."""
    profile.start_B[0] = now_s
    profile.free_B[0] = num_gpus
    profile.size[0] = 1


@compiled
def change(profile: Profile, start_s: float, end_s: float, num_gpus: int) -> None:
    """So many GPUs more (or, negative, fewer) are free from start_s until end_s."""
    start_B, free_B, size = profile
    first = _cut(profile, start_s)
    end = _cut(profile, end_s)
    for piece in range(first, end):
        free_B[piece] += num_gpus
    for piece in (end, first):  # where the count no longer changes, so that profiles stay short
        if 0 < piece < size[0] and free_B[piece] == free_B[piece - 1]:
            size[0] -= 1
            for later in range(piece, size[0]):
                start_B[later] = start_B[later + 1]
                free_B[later] = free_B[later + 1]


@compiled
def reserve(profile: Profile, schedules: Schedules, job: int) -> None:
    """Take the GPUs of a job's schedule."""
    for segment in range(schedules.count_J[job]):
        change(
            profile,
            schedules.start_JM[job, segment],
            schedules.end_JM[job, segment],
            -schedules.num_gpus_JM[job, segment],
        )


@compiled
def release(profile: Profile, schedules: Schedules, job: int) -> None:
    """Give back the GPUs of a job's schedule."""
    for segment in range(schedules.count_J[job]):
        change(
            profile,
            schedules.start_JM[job, segment],
            schedules.end_JM[job, segment],
            schedules.num_gpus_JM[job, segment],
        )


@compiled
def copy_schedule(schedules: Schedules, job: int, other: Schedules, other_job: int) -> None:
    """Give a job the schedule that one has elsewhere."""
    count = other.count_J[other_job]
    schedules.start_JM[job, :count] = other.start_JM[other_job, :count]
    schedules.end_JM[job, :count] = other.end_JM[other_job, :count]
    schedules.num_gpus_JM[job, :count] = other.num_gpus_JM[other_job, :count]
    schedules.count_J[job] = count


@compiled
def sweep(profile: Profile, schedules: Schedules, jobs_K: Integers, now_s: float, num_gpus: int) -> int:
    """What some jobs leave of `num_gpus` GPUs, in one sweep: much faster than many reservations.

    Returns the fewest GPUs free at any instant, negative if more are promised than exist.
    """
    start_B, free_B, size = profile
    num_changes = 0
    for job in jobs_K:
        num_changes += 2 * schedules.count_J[job]
    at_s = np.empty(num_changes)
    by = np.empty(num_changes, np.int64)
    at = 0
    for job in jobs_K:
        for segment in range(schedules.count_J[job]):
            held = schedules.num_gpus_JM[job, segment]
            at_s[at], by[at] = schedules.start_JM[job, segment], -held
            at_s[at + 1], by[at + 1] = schedules.end_JM[job, segment], held
            at += 2
    reset(profile, now_s, num_gpus)
    last = 0
    for index in np.argsort(at_s):
        if at_s[index] > start_B[last]:
            if last == 0 or free_B[last] != free_B[last - 1]:
                last += 1
            start_B[last] = at_s[index]
            free_B[last] = free_B[last - 1]
        free_B[last] += by[index]
    size[0] = last + 1
    lowest = num_gpus
    for piece in range(last + 1):
        lowest = min(lowest, free_B[piece])
    return lowest


@compiled
def copy_into(profile: Profile, other: Profile) -> None:
    """Make `profile` equal to `other`."""
    num_pieces = other.size[0]
    profile.start_B[:num_pieces] = other.start_B[:num_pieces]
    profile.free_B[:num_pieces] = other.free_B[:num_pieces]
    profile.size[0] = num_pieces


@compiled
def fewest_free(profile: Profile, start_s: float, end_s: float) -> int:
    """GPUs that are free all the time between two instants."""
    piece = piece_at(profile, start_s)
    fewest = profile.free_B[piece]
    while piece < profile.size[0] and profile.start_B[piece] < end_s:
        fewest = min(fewest, profile.free_B[piece])
        piece += 1
    return fewest


@compiled
def piece_at(profile: Profile, at_s: float) -> int:
    """The piece in which an instant lies."""
    low, high = 0, profile.size[0]
    while high - low > 1:
        middle = (low + high) // 2
        if profile.start_B[middle] <= at_s:
            low = middle
        else:
            high = middle
    return low


@compiled
def _cut(profile: Profile, at_s: float) -> int:
    """The piece that begins at an instant, made by a cut if there is none; the end of all if it is endless."""
    start_B, free_B, size = profile
    if at_s == np.inf:
        return size[0]
    piece = piece_at(profile, at_s)
    if start_B[piece] >= at_s:  # a profile knows nothing of the past: what began before now begins now
        return piece
    for later in range(size[0], piece + 1, -1):
        start_B[later] = start_B[later - 1]
        free_B[later] = free_B[later - 1]
    start_B[piece + 1] = at_s
    free_B[piece + 1] = free_B[piece]
    size[0] += 1
    return piece + 1
