"""Filling one job into the GPUs that are free: which level of GPUs it holds at each instant.

For a cap, the job may hold at each instant any of its levels up to the cap that is free; each change of level
(also from none) stops it for the cost of the new level. Among all ways to change levels where the profile changes,
`fill` finds one that ends earliest. For a level, the work done by holding it since some change is a straight line
over time; only the highest line of each level can be part of the best way, so one pass over the pieces is enough.
Axes: J = jobs; L = levels of a job, ascending and faster; M = segments.
Source: ElasticFlow, Algorithm 1 (progressive filling), over a step function, with every resize charged.
"""

from typing import NamedTuple

import numpy as np

from shared.scheduling.compiled import Floats, Integers, compiled
from shared.scheduling.profile import MAX_SEGMENTS, Profile

SLACK_S = 1e-3
"""A new schedule has room for so much more work at the job's greatest speed than is left. It covers the rounding of
sums of floats, so that exact arithmetic finds every schedule sufficient; nothing is ever forgiven afterwards."""

OUTAGE_S = 600.0
"""Promises with k nodes in reserve hold if at most k are down at once, one that failed counting as down for so long at
least: then at most k + k * t / OUTAGE_S failures can hit a job within t seconds (docs/adr/0013)."""

# Instead of a number of segments:
LATE = -1
TOO_MANY = -2  # it takes more of them than a schedule may have

_MAX_CHANGES = 16384  # of level that one fill remembers
_MAX_LEVELS = 32


class Jobs(NamedTuple):
    """What filling needs to know of some jobs at one instant; levels beyond `num_levels_J` are padding."""

    levels_JL: Integers  # numbers of GPUs
    rates_JL: Floats  # iterations/s
    costs_JL: Floats  # seconds without progress at a change to this level
    num_levels_J: Integers
    remaining_J: Floats  # iterations
    held_J: Integers  # GPUs
    stalled_until_J: Floats  # no progress before: a resize is under way
    deadline_J: Floats  # the end to plan for; inf: none
    lost_JL: Floats  # iterations that k failures cost at most while it holds up to this level


class Segments(NamedTuple):
    """One schedule."""

    start_M: Floats
    end_M: Floats
    num_gpus_M: Integers


class Scratch(NamedTuple):
    """Memory of `fill`: each change of level, what it followed, and when that ended."""

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
        np.empty(_MAX_CHANGES),
        np.empty(_MAX_CHANGES, np.int64),
        np.empty(_MAX_CHANGES, np.int64),
        np.empty(_MAX_CHANGES),
        np.empty(_MAX_LEVELS),
        np.empty(_MAX_LEVELS, np.int64),
    )


@compiled
def fill(
    profile: Profile, jobs: Jobs, job: int, cap: int, by_s: float, out: Segments, memory: Scratch
) -> int:
    """The schedule that ends first with at most level number `cap`: how many segments, LATE if it ends after by_s."""
    start_B, free_B, num_pieces = profile.start_B, profile.free_B, profile.size[0]
    levels, rates, costs = jobs.levels_JL[job], jobs.rates_JL[job], jobs.costs_JL[job]
    line, line_change = memory.line_L, memory.line_change_L
    now_s = start_B[0]
    if jobs.remaining_J[job] <= 0.0:
        return 0
    lost = jobs.lost_JL[job, cap]
    left = jobs.remaining_J[job] + SLACK_S * rates[jobs.num_levels_J[job] - 1] + lost
    lost_per_s = lost / OUTAGE_S  # the longer it takes, the more can fail
    if num_pieces + 4 * MAX_SEGMENTS > start_B.shape[0]:  # no room to reserve what would be found
        return TOO_MANY
    window_s = by_s - now_s
    for level in range(cap + 1):
        line_change[level] = -1
    work, last, last_end_s = 0.0, -1, 0.0  # the most work done so far, after which change, until when
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
            begun = work - rates[level] * ready_s
            if line_change[level] < 0 or begun > line[level]:
                if num_changes == _MAX_CHANGES:
                    return TOO_MANY
                memory.change_s[num_changes] = begins_s  # itself: a sum would not give it back
                memory.change_level[num_changes] = level
                memory.change_after[num_changes] = last
                memory.after_end_s[num_changes] = last_end_s
                line[level], line_change[level] = begun, num_changes
                num_changes += 1
        done_s, final = np.inf, -1
        for level in range(most + 1):
            gained_per_s = rates[level] - lost_per_s
            level_done_s = (left - line[level]) / gained_per_s if gained_per_s > 0.0 else np.inf
            if level_done_s < done_s:
                done_s, final = level_done_s, line_change[level]
        if final >= 0 and done_s <= end_s:
            if done_s > window_s:
                return LATE
            ends_s = now_s + done_s
            if piece < num_pieces:
                ends_s = min(ends_s, start_B[piece])
            # Work that rounding alone leaves for an instant's segment is done by the one before: the slack covers it.
            if ends_s <= memory.change_s[final] and memory.change_after[final] >= 0:
                final, ends_s = memory.change_after[final], memory.after_end_s[final]
            return _trace_back(memory, levels, final, ends_s, out)
    return LATE


@compiled
def minimum_share(
    profile: Profile, jobs: Jobs, job: int, by_s: float, out: Segments, other: Segments, memory: Scratch
) -> int:
    """The schedule with the smallest cap that ends by `by_s`: how many segments, or LATE if there is none.

    A job that would hold fewer GPU-seconds by staying at its present share (it saves a resize) stays.
    Source: ElasticFlow, Algorithm 1, lines 11-22.
    """
    for cap in range(jobs.num_levels_J[job]):
        count = fill(profile, jobs, job, cap, by_s, out, memory)
        if count >= 0:
            for level in range(cap + 1, jobs.num_levels_J[job]):
                if jobs.levels_JL[job, level] == jobs.held_J[job]:
                    unmoved = fill(profile, jobs, job, level, by_s, other, memory)
                    if unmoved >= 0 and gpu_seconds(other, unmoved) < gpu_seconds(out, count):
                        out.start_M[:unmoved] = other.start_M[:unmoved]
                        out.end_M[:unmoved] = other.end_M[:unmoved]
                        out.num_gpus_M[:unmoved] = other.num_gpus_M[:unmoved]
                        return unmoved
            return count
    return LATE


@compiled
def earliest_end_s(
    profile: Profile, jobs: Jobs, job: int, by_s: float, out: Segments, memory: Scratch
) -> float:
    """When a job ends with the cap with which it ends first; inf if not by `by_s`."""
    earliest_s, num_caps, count = np.inf, jobs.num_levels_J[job], LATE
    for cap in range(num_caps - 1, -1, -1):
        loses_less = cap == num_caps - 1 or jobs.lost_JL[job, cap] < jobs.lost_JL[job, cap + 1]
        if not loses_less and count != TOO_MANY:
            continue  # to failures, that is: else no sooner than with more GPUs
        count = fill(profile, jobs, job, cap, by_s, out, memory)
        if count >= 0:
            earliest_s = min(earliest_s, out.end_M[count - 1] if count > 0 else profile.start_B[0])
    return earliest_s


@compiled
def most_iterations(
    profile: Profile, jobs: Jobs, job: int, by_s: float, out: Segments, memory: Scratch
) -> int:
    """With how many iterations a job ends in time that does not with all of its own, to one in a hundred."""
    asked, cap = jobs.remaining_J[job], jobs.num_levels_J[job] - 1
    low, high = 0, int(asked)
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        jobs.remaining_J[job] = middle
        if fill(profile, jobs, job, cap, by_s, out, memory) >= 0:
            low = middle
        else:
            high = middle
    jobs.remaining_J[job] = asked
    return low


@compiled
def gpu_seconds(segments: Segments, count: int) -> float:
    """GPUs held times how long, stops included."""
    total = 0.0
    for segment in range(count):
        total += (segments.end_M[segment] - segments.start_M[segment]) * segments.num_gpus_M[segment]
    return total


@compiled
def _trace_back(memory: Scratch, levels: Integers, final: int, ends_s: float, out: Segments) -> int:
    """Write the changes that led to `final` as segments."""
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
