"""Clearings: other plans of the promised jobs, each of which leaves GPUs alone until some instant.

Some jobs keep the schedules that they have, the others are filled anew around the GPUs that they leave alone. All this
is made of the promises, and of no more GPUs than are said to be usable: nothing here knows who asks to come in. So who
fits into a clearing also fits in with less work, with more time, and with more GPUs (docs/adr/0017, 0030).
Axes: J = jobs; K = promised jobs, those that keep what they have first; C = clearings; B = pieces of their profiles.
"""

from typing import NamedTuple

import numpy as np

from shared.scheduling.compiled import Floats, Integers, compiled
from shared.scheduling.filling import Jobs, earliest_end_s
from shared.scheduling.planning import fill_in_order
from shared.scheduling.profile import Profile, Schedules, change, copy_into, reserve
from shared.scheduling.workspace import Workspace

MAX_WIDTHS = 8  # numbers of GPUs that are left alone: powers of two, of eight where these were more; then all
MAX_LOOKS = 8  # at instants, for each of them
SHORTEST_S = 1e-3
LONGEST_BY_SHORTEST = 4_096.0
PRECISION = 1.1  # the longest time is found to this factor
TRIES = 2  # orders in which jobs are filled anew


class Anew(NamedTuple):
    """The first `num_kept` of these rows keep what they have, the others are filled anew in this order."""

    order_K: Integers
    num_kept: int


class Usable(NamedTuple):
    """num_gpus: for those who are filled anew; num_beyond: GPUs beside these, which are left alone at any time."""

    num_gpus: int
    num_beyond: int


class Clearings(NamedTuple):
    """What some plans leave of all GPUs, as profiles, and how many were left alone in them until when."""

    start_CB: Floats
    free_CB: Integers
    size_C: Integers
    num_gpus_C: Integers
    until_s_C: Floats


@compiled
def clear(
    profile: Profile,
    filled: Schedules,
    jobs: Jobs,
    anew: Anew,
    num_gpus: int,
    until_s: float,
    num_beyond: int,
    work: Workspace,
) -> tuple[bool, int]:
    """Fill jobs anew that leave so many GPUs alone until an instant, and num_beyond at any time: whether all are in
    time, and how many fillings it took. A job that does not fit moves half the way to the front.

    profile: what those leave who keep their schedules; if all are in time, then what these leave too.
    """
    num_kept, num_fillings = anew.num_kept, 0
    order_K = anew.order_K.copy()
    for _ in range(TRIES):
        copy_into(work.profile, profile)
        change(work.profile, profile.start_B[0], until_s, -num_gpus)
        change(work.profile, profile.start_B[0], np.inf, -num_beyond)
        failed = fill_in_order(work.profile, filled, jobs, order_K, num_kept, work)
        if failed < 0:
            for job in order_K[num_kept:]:
                reserve(profile, filled, job)
            return True, num_fillings + order_K.shape[0] - num_kept
        num_fillings += failed + 1 - num_kept
        if failed == num_kept:
            break
        earlier, moved = (num_kept + failed) // 2, order_K[failed]
        order_K[earlier + 1 : failed + 1] = order_K[earlier:failed].copy()
        order_K[earlier] = moved
    return False, num_fillings


def empty_clearings(num_pieces: int) -> Clearings:
    """Room for as many as there may be of one kind, of so many pieces each."""
    shape = ((MAX_WIDTHS + 1) * MAX_LOOKS, num_pieces)
    sizes, num_gpus = np.empty(shape[0], np.int64), np.empty(shape[0], np.int64)
    return Clearings(np.empty(shape), np.empty(shape, np.int64), sizes, num_gpus, np.empty(shape[0]))


@compiled
def clearings(
    found: Clearings,
    profile: Profile,
    kept: Profile,
    filled: Schedules,
    jobs: Jobs,
    anew: Anew,
    usable: Usable,
    most_fillings: int,
    work: Workspace,
) -> tuple[Clearings, int]:
    """For more and more GPUs the longest time for which they can be left alone, to some precision, and what is found
    on the way there; and how many fillings it took.

    found, profile: memory. kept: what those leave who keep their schedules.
    """
    now_s, count, num_fillings = kept.start_B[0], 0, 0
    longest_s = jobs.deadline_J[anew.order_K[anew.num_kept :]].max() - now_s
    longest = np.log(max(longest_s, SHORTEST_S))
    shortest = longest - np.log(LONGEST_BY_SHORTEST)
    num_gpus, high = 1, np.inf
    while num_gpus <= usable.num_gpus:
        low = shortest
        while high - low > np.log(PRECISION) and num_fillings < most_fillings:
            look = (low + high) / 2.0
            until_s = now_s + np.exp(look)
            copy_into(profile, kept)
            fits, took = clear(profile, filled, jobs, anew, num_gpus, until_s, usable.num_beyond, work)
            num_fillings += took
            if fits:
                store_clearing(found, count, profile, num_gpus, until_s)
                count, low = count + 1, look
            else:
                high = min(look, longest)
        if low == shortest:
            break
        num_gpus = wider(num_gpus, usable.num_gpus)
    return first_clearings(found, count), num_fillings


@compiled
def first_in_time(found: Clearings, jobs: Jobs, job: int, work: Workspace) -> int:
    """The first clearing, which leaves the fewest GPUs alone, in which one more job is in time; -1 if there is none."""
    by_s = float(jobs.deadline_J[job])
    for clearing in range(found.size_C.shape[0]):
        _look_at(found, clearing, work.profile)
        if earliest_end_s(work.profile, jobs, job, by_s, work.found, work.memory) < np.inf:
            return clearing
    return -1


@compiled
def earliest_end_in_any_s(found: Clearings, jobs: Jobs, job: int, by_s: float, work: Workspace) -> float:
    """When one more job ends in the clearing in which it ends first; by_s if it ends in none by then."""
    for clearing in range(found.size_C.shape[0]):
        _look_at(found, clearing, work.profile)
        by_s = min(by_s, earliest_end_s(work.profile, jobs, job, by_s, work.found, work.memory))
    return by_s


@compiled
def _look_at(found: Clearings, clearing: int, profile: Profile) -> None:
    """Make the profile that of a clearing."""
    size = found.size_C[clearing]
    profile.start_B[:size] = found.start_CB[clearing, :size]
    profile.free_B[:size] = found.free_CB[clearing, :size]
    profile.size[0] = size


@compiled
def wider(num_gpus: int, num_usable: int) -> int:
    """From one number of GPUs that are left alone to the next, at last to all that may be used; then to more."""
    if num_gpus == num_usable:
        return num_usable + 1
    return min(num_gpus * (2 if num_usable < 2**MAX_WIDTHS else 8), num_usable)


@compiled
def store_clearing(found: Clearings, index: int, profile: Profile, num_gpus: int, until_s: float) -> None:
    size = profile.size[0]
    found.start_CB[index, :size] = profile.start_B[:size]
    found.free_CB[index, :size] = profile.free_B[:size]
    found.size_C[index], found.num_gpus_C[index], found.until_s_C[index] = size, num_gpus, until_s


@compiled
def first_clearings(found: Clearings, count: int) -> Clearings:
    """So many of them, in no more memory than they need."""
    widest = 0
    for size in found.size_C[:count]:
        widest = max(widest, size)
    return Clearings(
        found.start_CB[:count, :widest].copy(),
        found.free_CB[:count, :widest].copy(),
        found.size_C[:count].copy(),
        found.num_gpus_C[:count].copy(),
        found.until_s_C[:count].copy(),
    )
