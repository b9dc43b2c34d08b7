"""Which promised jobs are filled again to make an alternative plan: destroy sets in fixed orders, or neighborhood
search.

Neither depends on the arriving job, so that a quote and its submission get the same answer (docs/adr/0024).
Large neighborhood search starts from the current schedules. It removes one job that holds GPUs which must stay free
and some random jobs beside it, and fills them again around all others. If one of them does not fit, all of them return
to their schedules. So the overcommitment shrinks, and after each step all jobs meet their deadlines.
Axes: J, C, B as in `alternative_plans`; K = promised jobs by earliest deadline; A = jobs that are filled again
together.
Source: P. Shaw, Using constraint programming and local search methods to solve vehicle routing problems, CP 1998.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.alternative_plans import (
    LONGEST_BY_SHORTEST,
    PRECISION,
    AlternativePlans,
    DestroySet,
    UsableGpus,
    first_alternative_plans,
    next_num_gpus,
    store_alternative_plan,
)
from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    Schedules,
    change,
    copy_into,
    release,
    reserve,
)
from elasticflow.shared.scheduling.availability.fill_many_jobs import (
    copy_schedules,
    gather_schedules,
    scatter_schedules,
    write_segments,
)
from elasticflow.shared.scheduling.availability.fill_one_job import Jobs, minimum_share
from elasticflow.shared.scheduling.availability.scratch_arrays import ScratchArrays
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled

PARTS_BY_DEADLINE = tuple(number / 16 for number in range(1, 16, 2))  # of all jobs, the last ones by deadline
PARTS_BY_OTHER_ORDERS = (1 / 4, 2 / 4, 3 / 4, 1.0)
_SHORTEST_S = 1e-9


def destroy_sets(order_K: Integers, window_s_K: Floats, least_s_K: Floats) -> Iterator[DestroySet]:
    """Yield destroy sets, smallest first, and none twice in the same order.

    The sets are the last jobs by deadline, by latest start, by slack, and at random.
    window_s_K: seconds from now to the deadline. least_s_K: seconds of work at the highest throughput.
    """
    num_jobs, known = len(order_K), set[bytes]()
    by_deadline_K = np.arange(num_jobs)
    by_latest_start_K = np.argsort(window_s_K - least_s_K, kind="stable")
    by_slack_K = np.argsort(window_s_K / np.maximum(least_s_K, _SHORTEST_S), kind="stable")
    by_chance_K = np.random.default_rng(num_jobs).permutation(num_jobs)
    parts = [(part, by_deadline_K, True) for part in PARTS_BY_DEADLINE]
    for part in PARTS_BY_OTHER_ORDERS:
        parts += [(part, by_latest_start_K, False), (part, by_slack_K, True), (part, by_chance_K, True)]
    for part, position_K, is_filled_by_deadline in sorted(parts, key=lambda one: one[0]):
        num_kept = max(num_jobs - max(round(part * num_jobs), 1), 0)
        kept_K, anew_K = position_K[:num_kept], position_K[num_kept:]
        if is_filled_by_deadline:
            anew_K = np.sort(anew_K)
        if num_jobs and anew_K.tobytes() not in known:
            known.add(anew_K.tobytes())
            yield DestroySet(order_K[np.concatenate((kept_K, anew_K))], num_kept)


MAX_JOBS_TOGETHER = 6  # jobs that one step fills again
MAX_STEPS = 100  # before the search gives up on keeping GPUs free for this long
FIRST_STRIDE = 16.0  # first factor by which a time is prolonged; its root after each failure


class CurrentPlan(NamedTuple):
    """The GPUs that all jobs leave free now, the schedules, and the jobs in order."""

    left: AvailabilityProfile
    schedules: Schedules
    order_K: Integers


@compiled
def search_neighborhoods(
    found: AlternativePlans,
    availability: AvailabilityProfile,
    current: CurrentPlan,
    moved: Schedules,
    jobs: Jobs,
    usable: UsableGpus,
    max_fillings: int,
    max_plans: int,
    chance: np.random.Generator,
    work: ScratchArrays,
) -> AlternativePlans:
    """For growing numbers of GPUs, find the longest time for which they can be kept free, as `alternative_plans` does.

    availability: scratch memory. `moved` holds the schedules of the last plan found, `availability` what it leaves
    free.
    """
    now_s, count, num_fillings = current.left.start_B[0], 0, 0
    longest_s = jobs.deadline_J[current.order_K].max() - now_s
    shuffled_K = current.order_K.copy()
    num_gpus, num_always_free = 1, usable.num_always_free
    while num_gpus <= usable.num_gpus:
        copy_into(availability, current.left)
        copy_schedules(moved, current.schedules, current.order_K)
        free_for_s, stride = _free_for_s(availability, num_gpus + num_always_free), FIRST_STRIDE
        while free_for_s < longest_s and stride > PRECISION and num_fillings < max_fillings:
            asked_s = min(max(free_for_s * stride, longest_s / LONGEST_BY_SHORTEST), longest_s)
            change(availability, now_s, now_s + asked_s, -num_gpus)
            change(availability, now_s, np.inf, -num_always_free)
            is_free, took = _resolve_overcommitment(availability, moved, jobs, shuffled_K, chance, work)
            change(availability, now_s, now_s + asked_s, num_gpus)
            change(availability, now_s, np.inf, num_always_free)
            num_fillings += took
            if is_free:
                store_alternative_plan(found, count, availability, num_gpus, now_s + asked_s)
                count += 1
                if count == max_plans:
                    return first_alternative_plans(found, count)
                free_for_s = max(_free_for_s(availability, num_gpus + num_always_free), asked_s)
            else:
                stride = np.sqrt(stride)
        num_gpus = next_num_gpus(num_gpus, usable.num_gpus)
    return first_alternative_plans(found, count)


@compiled
def _free_for_s(availability: AvailabilityProfile, num_gpus: int) -> float:
    """For how long from now on this many GPUs are free."""
    for piece in range(availability.size[0]):
        if availability.free_B[piece] < num_gpus:
            return float(availability.start_B[piece] - availability.start_B[0])
    return np.inf


@compiled
def _resolve_overcommitment(
    availability: AvailabilityProfile,
    schedules: Schedules,
    jobs: Jobs,
    shuffled_K: Integers,
    chance: np.random.Generator,
    work: ScratchArrays,
) -> tuple[bool, int]:
    """Refill jobs until no instant is overcommitted. Returns whether that was reached, and the number of fillings."""
    num_fillings = 0
    for _ in range(MAX_STEPS):
        piece = 0
        while piece < availability.size[0] and availability.free_B[piece] >= 0:
            piece += 1
        if piece == availability.size[0]:
            return True, num_fillings
        num_there = _move_holders_to_front(shuffled_K, schedules, float(availability.start_B[piece]))
        if num_there == 0:  # fixed rows alone exceed the GPUs
            break
        together_A = _random_destroy_set(shuffled_K, num_there, jobs, chance)
        num_fillings += _refill_together(availability, schedules, jobs, together_A, work)
    return False, num_fillings


@compiled
def _move_holders_to_front(shuffled_K: Integers, schedules: Schedules, at_s: float) -> int:
    """Move the jobs that hold GPUs at an instant to the front; return how many there are."""
    num_there = 0
    for position in range(shuffled_K.shape[0]):
        job = shuffled_K[position]
        for segment in range(schedules.count_J[job]):
            if schedules.start_JM[job, segment] <= at_s < schedules.end_JM[job, segment]:
                _swap(shuffled_K, num_there, position)
                num_there += 1
                break
    return num_there


@compiled
def _random_destroy_set(shuffled_K: Integers, num_there: int, jobs: Jobs, chance: np.random.Generator) -> Integers:
    """One of the first `num_there` jobs and some of all others, by earliest deadline."""
    num_jobs = shuffled_K.shape[0]
    _swap(shuffled_K, 0, int(chance.random() * num_there))
    num_together = 1 + int(chance.random() * min(MAX_JOBS_TOGETHER, num_jobs))
    for position in range(1, num_together):
        _swap(shuffled_K, position, position + int(chance.random() * (num_jobs - position)))
    together_A = shuffled_K[:num_together].copy()
    return together_A[np.argsort(jobs.deadline_J[together_A], kind="mergesort")]


@compiled
def _swap(shuffled_K: Integers, one: int, other: int) -> None:
    shuffled_K[one], shuffled_K[other] = shuffled_K[other], shuffled_K[one]


@compiled
def _refill_together(
    availability: AvailabilityProfile, schedules: Schedules, jobs: Jobs, anew_A: Integers, work: ScratchArrays
) -> int:
    """Fill these jobs again around all others, or restore them if one does not fit. Returns the number of fillings."""
    before = gather_schedules(schedules, anew_A)
    for job in anew_A:
        release(availability, schedules, job)
    for number in range(anew_A.shape[0]):
        job = anew_A[number]
        by_s = float(jobs.deadline_J[job])
        count = minimum_share(availability, jobs, job, by_s, work.found, work.other, work.memory)
        if count < 0:
            for filled in anew_A[:number]:
                release(availability, schedules, filled)
            scatter_schedules(schedules, before, anew_A)
            for again in anew_A:
                reserve(availability, schedules, again)
            return number + 1
        write_segments(schedules, job, work.found, count)
        reserve(availability, schedules, job)
    return anew_A.shape[0]
