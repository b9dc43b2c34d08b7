"""Alternative plans of the promised jobs, each of which keeps GPUs free until some instant.

Some jobs keep their schedules; the jobs of a destroy set are filled again around the GPUs that are kept free. A plan
depends on the promises and on the number of usable GPUs only, never on the arriving job. So a job that fits into an
alternative plan also fits with less work, more time or more GPUs (docs/adr/0017, 0030).
Axes: J = jobs; K = promised jobs, kept ones first; C = alternative plans; B = pieces of their availability profiles.
"""

from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    Schedules,
    change,
    copy_into,
    reserve,
)
from elasticflow.shared.scheduling.availability.fill_many_jobs import fill_in_order
from elasticflow.shared.scheduling.availability.fill_one_job import Jobs, earliest_end_s
from elasticflow.shared.scheduling.availability.scratch_arrays import ScratchArrays
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled

MAX_WIDTHS = 8  # numbers of GPUs to keep free: powers of two, of eight if these are too many; then all
MAX_LOOKS = 8  # bisection steps for each
SHORTEST_S = 1e-3
LONGEST_BY_SHORTEST = 4_096.0
PRECISION = 1.1  # factor to which the longest time is found
MAX_FILL_ORDERS = 2  # orders in which the destroy set is filled


class DestroySet(NamedTuple):
    """The first `num_kept` of these rows keep their schedules; the others are filled again in this order."""

    order_K: Integers
    num_kept: int


class UsableGpus(NamedTuple):
    """num_gpus: for the jobs that are filled again; num_always_free: further GPUs that stay free at all times."""

    num_gpus: int
    num_always_free: int


class AlternativePlans(NamedTuple):
    """The availability profile of each plan, and how many GPUs it keeps free until when."""

    start_CB: Floats
    free_CB: Integers
    size_C: Integers
    num_gpus_C: Integers
    until_s_C: Floats


@compiled
def refill_leaving_free(
    availability: AvailabilityProfile,
    filled: Schedules,
    jobs: Jobs,
    destroy_set: DestroySet,
    num_gpus: int,
    until_s: float,
    num_always_free: int,
    work: ScratchArrays,
) -> tuple[bool, int]:
    """Fill the destroy set again and keep num_gpus GPUs free until until_s, and num_always_free at all times.

    availability: the GPUs that the kept jobs leave; on success the new schedules are subtracted from it.
    A job that does not fit moves half the way to the front of the order.
    Returns whether all jobs meet their deadlines, and the number of fillings.
    """
    num_kept, num_fillings = destroy_set.num_kept, 0
    order_K = destroy_set.order_K.copy()
    for _ in range(MAX_FILL_ORDERS):
        copy_into(work.availability, availability)
        change(work.availability, availability.start_B[0], until_s, -num_gpus)
        change(work.availability, availability.start_B[0], np.inf, -num_always_free)
        failed = fill_in_order(work.availability, filled, jobs, order_K, num_kept, work)
        if failed < 0:
            for job in order_K[num_kept:]:
                reserve(availability, filled, job)
            return True, num_fillings + order_K.shape[0] - num_kept
        num_fillings += failed + 1 - num_kept
        if failed == num_kept:
            break
        earlier, moved = (num_kept + failed) // 2, order_K[failed]
        order_K[earlier + 1 : failed + 1] = order_K[earlier:failed].copy()
        order_K[earlier] = moved
    return False, num_fillings


def empty_alternative_plans(num_pieces: int) -> AlternativePlans:
    """Capacity for the largest batch of plans, each with this many pieces."""
    shape = ((MAX_WIDTHS + 1) * MAX_LOOKS, num_pieces)
    sizes, num_gpus = np.empty(shape[0], np.int64), np.empty(shape[0], np.int64)
    return AlternativePlans(np.empty(shape), np.empty(shape, np.int64), sizes, num_gpus, np.empty(shape[0]))


@compiled
def alternative_plans(
    found: AlternativePlans,
    availability: AvailabilityProfile,
    kept: AvailabilityProfile,
    filled: Schedules,
    jobs: Jobs,
    destroy_set: DestroySet,
    usable: UsableGpus,
    max_fillings: int,
    work: ScratchArrays,
) -> tuple[AlternativePlans, int]:
    """For growing numbers of GPUs, find the longest time for which they can be kept free, by bisection.

    found, availability: scratch memory. kept: the GPUs that the kept jobs leave free.
    Returns every plan found on the way, and the number of fillings.
    """
    now_s, count, num_fillings = kept.start_B[0], 0, 0
    longest_s = jobs.deadline_J[destroy_set.order_K[destroy_set.num_kept :]].max() - now_s
    longest = np.log(max(longest_s, SHORTEST_S))
    shortest = longest - np.log(LONGEST_BY_SHORTEST)
    num_gpus, high = 1, np.inf
    while num_gpus <= usable.num_gpus:
        low = shortest
        while high - low > np.log(PRECISION) and num_fillings < max_fillings:
            look = (low + high) / 2.0
            until_s = now_s + np.exp(look)
            copy_into(availability, kept)
            fits, took = refill_leaving_free(
                availability, filled, jobs, destroy_set, num_gpus, until_s, usable.num_always_free, work
            )
            num_fillings += took
            if fits:
                store_alternative_plan(found, count, availability, num_gpus, until_s)
                count, low = count + 1, look
            else:
                high = min(look, longest)
        if low == shortest:
            break
        num_gpus = next_num_gpus(num_gpus, usable.num_gpus)
    return first_alternative_plans(found, count), num_fillings


@compiled
def first_plan_that_fits(found: AlternativePlans, jobs: Jobs, job: int, work: ScratchArrays) -> int:
    """The first plan, with the fewest GPUs kept free, in which the job meets its deadline; -1 if there is none."""
    by_s = float(jobs.deadline_J[job])
    for plan_index in range(found.size_C.shape[0]):
        _load_plan(found, plan_index, work.availability)
        if earliest_end_s(work.availability, jobs, job, by_s, work.found, work.memory) < np.inf:
            return plan_index
    return -1


@compiled
def earliest_end_in_any_s(found: AlternativePlans, jobs: Jobs, job: int, by_s: float, work: ScratchArrays) -> float:
    """The earliest end of the job over all plans; by_s if it ends in none of them by then."""
    for plan_index in range(found.size_C.shape[0]):
        _load_plan(found, plan_index, work.availability)
        by_s = min(by_s, earliest_end_s(work.availability, jobs, job, by_s, work.found, work.memory))
    return by_s


@compiled
def _load_plan(found: AlternativePlans, plan_index: int, availability: AvailabilityProfile) -> None:
    """Copy the availability profile of one plan."""
    size = found.size_C[plan_index]
    availability.start_B[:size] = found.start_CB[plan_index, :size]
    availability.free_B[:size] = found.free_CB[plan_index, :size]
    availability.size[0] = size


@compiled
def next_num_gpus(num_gpus: int, num_usable: int) -> int:
    """The next number of GPUs to keep free; the last one is all usable GPUs, and one more ends the loop."""
    if num_gpus == num_usable:
        return num_usable + 1
    return min(num_gpus * (2 if num_usable < 2**MAX_WIDTHS else 8), num_usable)


@compiled
def store_alternative_plan(
    found: AlternativePlans, index: int, availability: AvailabilityProfile, num_gpus: int, until_s: float
) -> None:
    size = availability.size[0]
    found.start_CB[index, :size] = availability.start_B[:size]
    found.free_CB[index, :size] = availability.free_B[:size]
    found.size_C[index], found.num_gpus_C[index], found.until_s_C[index] = size, num_gpus, until_s


@compiled
def first_alternative_plans(found: AlternativePlans, count: int) -> AlternativePlans:
    """The first `count` plans, in no more memory than they need."""
    widest = 0
    for size in found.size_C[:count]:
        widest = max(widest, size)
    return AlternativePlans(
        found.start_CB[:count, :widest].copy(),
        found.free_CB[:count, :widest].copy(),
        found.size_C[:count].copy(),
        found.num_gpus_C[:count].copy(),
        found.until_s_C[:count].copy(),
    )
