"""The availability profile: GPUs that are not promised, as a step function of time in arrays that change in place.

Time is continuous: each instant at which a promise begins or ends is a breakpoint; there is no grid.
Axes: B = pieces between breakpoints, the last one endless; J = jobs; M = segments of the schedule of one job.
"""

from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.compiled_loops import Floats, Integers, compiled

MAX_SEGMENTS = 64  # of one schedule: each costs a resize, so that longer schedules are useless
PIECES_OF_A_JOB = 16  # of a profile: a segment begins one and ends one, and nearly all schedules have a few segments


class AvailabilityProfile(NamedTuple):
    """`free_B[b]` GPUs are free from `start_B[b]` on; the first `size[0]` pieces are valid."""

    start_B: Floats
    free_B: Integers
    size: Integers


class Schedules(NamedTuple):
    """The GPUs that each job holds over time: `count_J[j]` disjoint segments in order."""

    start_JM: Floats
    end_JM: Floats
    num_gpus_JM: Integers
    count_J: Integers


def empty_availability_profile(num_pieces: int) -> AvailabilityProfile:
    """Capacity for `num_pieces` pieces."""
    return AvailabilityProfile(np.empty(num_pieces), np.empty(num_pieces, np.int64), np.zeros(1, np.int64))


def empty_schedules(num_jobs: int) -> Schedules:
    """Capacity for the schedules of `num_jobs` jobs; all are empty."""
    shape = (num_jobs, MAX_SEGMENTS)
    return Schedules(np.empty(shape), np.empty(shape), np.empty(shape, np.int64), np.zeros(num_jobs, np.int64))


@compiled
def reset(availability: AvailabilityProfile, now_s: float, num_gpus: int) -> None:
    """Set all GPUs free from now on."""
    availability.start_B[0] = now_s
    availability.free_B[0] = num_gpus
    availability.size[0] = 1


@compiled
def change(availability: AvailabilityProfile, start_s: float, end_s: float, num_gpus: int) -> None:
    """Add `num_gpus` free GPUs (a negative number removes them) between start_s and end_s."""
    start_B, free_B, size = availability
    first = _cut(availability, start_s)
    end = _cut(availability, end_s)
    for piece in range(first, end):
        free_B[piece] += num_gpus
    for piece in (end, first):  # remove breakpoints without a change, so that profiles stay short
        if 0 < piece < size[0] and free_B[piece] == free_B[piece - 1]:
            size[0] -= 1
            for later in range(piece, size[0]):
                start_B[later] = start_B[later + 1]
                free_B[later] = free_B[later + 1]


@compiled
def reserve(availability: AvailabilityProfile, schedules: Schedules, job: int) -> None:
    """Subtract the GPUs of the schedule of a job."""
    for segment in range(schedules.count_J[job]):
        change(
            availability,
            schedules.start_JM[job, segment],
            schedules.end_JM[job, segment],
            -schedules.num_gpus_JM[job, segment],
        )


@compiled
def release(availability: AvailabilityProfile, schedules: Schedules, job: int) -> None:
    """Add the GPUs of the schedule of a job."""
    for segment in range(schedules.count_J[job]):
        change(
            availability,
            schedules.start_JM[job, segment],
            schedules.end_JM[job, segment],
            schedules.num_gpus_JM[job, segment],
        )


@compiled
def copy_schedule(schedules: Schedules, job: int, other: Schedules, other_job: int) -> None:
    """Copy the schedule of one job to another."""
    count = other.count_J[other_job]
    schedules.start_JM[job, :count] = other.start_JM[other_job, :count]
    schedules.end_JM[job, :count] = other.end_JM[other_job, :count]
    schedules.num_gpus_JM[job, :count] = other.num_gpus_JM[other_job, :count]
    schedules.count_J[job] = count


@compiled
def sweep(
    availability: AvailabilityProfile, schedules: Schedules, jobs_K: Integers, now_s: float, num_gpus: int
) -> int:
    """Compute what these jobs leave of `num_gpus` GPUs in one sweep, much faster than by single reservations.

    Returns the fewest GPUs that are free at any instant; negative if the schedules hold more GPUs than exist.
    """
    start_B, free_B, size = availability
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
            at += 1
            if schedules.end_JM[job, segment] < np.inf:  # GPUs of a node that has left never come back
                at_s[at], by[at] = schedules.end_JM[job, segment], held
                at += 1
    reset(availability, now_s, num_gpus)
    last = 0
    for index in np.argsort(at_s[:at]):
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
def copy_into(availability: AvailabilityProfile, other: AvailabilityProfile) -> None:
    """Make `availability` equal to `other`."""
    num_pieces = other.size[0]
    availability.start_B[:num_pieces] = other.start_B[:num_pieces]
    availability.free_B[:num_pieces] = other.free_B[:num_pieces]
    availability.size[0] = num_pieces


@compiled
def limit_from(
    limited: AvailabilityProfile, availability: AvailabilityProfile, from_s: float, most: int, until_s: float
) -> None:
    """Make `limited` equal to `availability` until an instant, with at most `most` free GPUs from another one on. It
    needs one piece more.
    """
    size = 0
    for piece in range(availability.size[0]):
        if availability.start_B[piece] >= until_s and size > 0:
            break
        start_s, free = availability.start_B[piece], availability.free_B[piece]
        end_s = availability.start_B[piece + 1] if piece + 1 < availability.size[0] else np.inf
        if start_s < from_s < end_s and free > most:
            limited.start_B[size], limited.free_B[size] = start_s, free
            size, start_s = size + 1, from_s
        if start_s >= from_s:
            free = min(free, most)
        if size == 0 or limited.free_B[size - 1] != free:
            limited.start_B[size], limited.free_B[size] = start_s, free
            size += 1
    limited.size[0] = size


@compiled
def fewest_free(availability: AvailabilityProfile, start_s: float, end_s: float) -> int:
    """The number of GPUs that are free during the whole interval."""
    piece = piece_at(availability, start_s)
    fewest = availability.free_B[piece]
    while piece < availability.size[0] and availability.start_B[piece] < end_s:
        fewest = min(fewest, availability.free_B[piece])
        piece += 1
    return fewest


@compiled
def piece_at(availability: AvailabilityProfile, at_s: float) -> int:
    """The piece that contains an instant."""
    low, high = 0, availability.size[0]
    while high - low > 1:
        middle = (low + high) // 2
        if availability.start_B[middle] <= at_s:
            low = middle
        else:
            high = middle
    return low


@compiled
def _cut(availability: AvailabilityProfile, at_s: float) -> int:
    """The piece that begins at an instant, created if needed; the end of the profile for an infinite instant."""
    start_B, free_B, size = availability
    if at_s == np.inf:
        return size[0]
    piece = piece_at(availability, at_s)
    if start_B[piece] >= at_s:  # a profile has no past: an earlier start is now
        return piece
    for later in range(size[0], piece + 1, -1):
        start_B[later] = start_B[later - 1]
        free_B[later] = free_B[later - 1]
    start_B[piece + 1] = at_s
    free_B[piece + 1] = free_B[piece]
    size[0] += 1
    return piece + 1


# --- scratch arrays ------------------------------------------------------------------------------------
# Scratch memory for compiled loops over many jobs: successive plans of one owner use it again.

MAX_CHANGES = 16384  # of level, per call of `fill`
_MAX_LEVELS = 32


class Segments(NamedTuple):
    """One schedule."""

    start_M: Floats
    end_M: Floats
    num_gpus_M: Integers


class Scratch(NamedTuple):
    """Scratch memory of `fill`: each change of level, the change before it, and when that one ended."""

    change_s: Floats
    change_level: Integers
    change_after: Integers
    after_end_s: Floats
    line_L: Floats  # work at the instant 0 of the highest line of each level
    line_change_L: Integers  # the change with which it began; -1: the level is not held


def empty_segments() -> Segments:
    return Segments(np.empty(MAX_SEGMENTS), np.empty(MAX_SEGMENTS), np.empty(MAX_SEGMENTS, np.int64))


def new_scratch() -> Scratch:
    return Scratch(
        np.empty(MAX_CHANGES),
        np.empty(MAX_CHANGES, np.int64),
        np.empty(MAX_CHANGES, np.int64),
        np.empty(MAX_CHANGES),
        np.empty(_MAX_LEVELS),
        np.empty(_MAX_LEVELS, np.int64),
    )


class ScratchArrays(NamedTuple):
    """availability: one more step function; found, other: one schedule each; memory: of `fill`."""

    availability: AvailabilityProfile
    found: Segments
    other: Segments
    memory: Scratch


class ScratchMemory:
    """One set of scratch arrays, whose contents are invalid between two calls.

    New arrays cost a page fault for each 4 KiB at their first use, so that a planning cache keeps them.
    """

    def __init__(self) -> None:
        self._arrays = ScratchArrays(
            empty_availability_profile(1024),
            empty_segments(),
            empty_segments(),
            new_scratch(),
        )

    def arrays(self, num_pieces: int) -> ScratchArrays:
        """The arrays, with capacity for a profile of `num_pieces` pieces."""
        if len(self._arrays.availability.start_B) < num_pieces:
            self._arrays = self._arrays._replace(availability=empty_availability_profile(2 * num_pieces))
        return self._arrays
