"""Clearings by large neighbourhood search, for where no order of filling leaves enough GPUs alone.

From the schedules that stand, jobs go out of the way a few at a time: one that holds GPUs which are to be left alone,
and some beside it by chance, are taken out and filled anew around all others; where one of them does not fit, all go
back. So what is in the way becomes less and less, and after each step all are in time. As in `clearings`, nothing here
knows who asks to come in (docs/adr/0024).
Axes: J, C, B as in `clearings`; K = promised jobs; A = those of them that are filled anew together.
Source: P. Shaw, Using constraint programming and local search methods to solve vehicle routing problems, CP 1998.
"""

from typing import NamedTuple

import numpy as np

from shared.scheduling.clearings import (
    LONGEST_BY_SHORTEST,
    PRECISION,
    Clearings,
    Usable,
    first_clearings,
    store_clearing,
    wider,
)
from shared.scheduling.compiled import Integers, compiled
from shared.scheduling.filling import Jobs, minimum_share
from shared.scheduling.planning import picked, put, take, write
from shared.scheduling.profile import Profile, Schedules, change, copy_into, release, reserve
from shared.scheduling.workspace import Workspace

MOST_TOGETHER = 6  # jobs filled anew in one step
MAX_STEPS = 100  # before GPUs count as not to be had for so long
LONGEST_STRIDE = 16.0  # by which a time is tried to be prolonged at first; after each failure by its root


class Standing(NamedTuple):
    """The plan that stands: what all jobs leave, their schedules, and who they are."""

    left: Profile
    schedules: Schedules
    order_K: Integers


@compiled
def search_clearings(
    found: Clearings,
    profile: Profile,
    standing: Standing,
    moved: Schedules,
    jobs: Jobs,
    usable: Usable,
    most_fillings: int,
    most_clearings: int,
    chance: np.random.Generator,
    work: Workspace,
) -> Clearings:
    """For more and more GPUs the longest time for which they can be left alone, as `clearings` does.

    profile: memory. The plan of the last clearing that was found is left in `moved`, what it leaves in `profile`.
    """
    now_s, count, num_fillings = standing.left.start_B[0], 0, 0
    longest_s = jobs.deadline_J[standing.order_K].max() - now_s
    around_K = standing.order_K.copy()
    num_gpus, num_beyond = 1, usable.num_beyond
    while num_gpus <= usable.num_gpus:
        copy_into(profile, standing.left)
        take(moved, standing.schedules, standing.order_K)
        alone_s, stride = _alone_s(profile, num_gpus + num_beyond), LONGEST_STRIDE
        while alone_s < longest_s and stride > PRECISION and num_fillings < most_fillings:
            asked_s = min(max(alone_s * stride, longest_s / LONGEST_BY_SHORTEST), longest_s)
            change(profile, now_s, now_s + asked_s, -num_gpus)
            change(profile, now_s, np.inf, -num_beyond)
            is_alone, took = _make_way(profile, moved, jobs, around_K, chance, work)
            change(profile, now_s, now_s + asked_s, num_gpus)
            change(profile, now_s, np.inf, num_beyond)
            num_fillings += took
            if is_alone:
                store_clearing(found, count, profile, num_gpus, now_s + asked_s)
                count += 1
                if count == most_clearings:
                    return first_clearings(found, count)
                alone_s = max(_alone_s(profile, num_gpus + num_beyond), asked_s)
            else:
                stride = np.sqrt(stride)
        num_gpus = wider(num_gpus, usable.num_gpus)
    return first_clearings(found, count)


@compiled
def _alone_s(profile: Profile, num_gpus: int) -> float:
    """For how long from now on so many GPUs are free."""
    for piece in range(profile.size[0]):
        if profile.free_B[piece] < num_gpus:
            return float(profile.start_B[piece] - profile.start_B[0])
    return np.inf


@compiled
def _make_way(
    profile: Profile,
    schedules: Schedules,
    jobs: Jobs,
    around_K: Integers,
    chance: np.random.Generator,
    work: Workspace,
) -> tuple[bool, int]:
    """Until no more GPUs are held than there are: whether that was reached, and how many fillings it took."""
    num_fillings = 0
    for _ in range(MAX_STEPS):
        piece = 0
        while piece < profile.size[0] and profile.free_B[piece] >= 0:
            piece += 1
        if piece == profile.size[0]:
            return True, num_fillings
        num_there = _bring_to_front(around_K, schedules, float(profile.start_B[piece]))
        if num_there == 0:  # it is not the promised who hold too much, but what is settled
            break
        together_A = _some_together(around_K, num_there, jobs, chance)
        num_fillings += _fill_together(profile, schedules, jobs, together_A, work)
    return False, num_fillings


@compiled
def _bring_to_front(around_K: Integers, schedules: Schedules, at_s: float) -> int:
    """The jobs that hold GPUs at an instant: how many."""
    num_there = 0
    for position in range(around_K.shape[0]):
        job = around_K[position]
        for segment in range(schedules.count_J[job]):
            if schedules.start_JM[job, segment] <= at_s < schedules.end_JM[job, segment]:
                _swap(around_K, num_there, position)
                num_there += 1
                break
    return num_there


@compiled
def _some_together(around_K: Integers, num_there: int, jobs: Jobs, chance: np.random.Generator) -> Integers:
    """One of the first, and some of all others, by earliest deadline."""
    num_jobs = around_K.shape[0]
    _swap(around_K, 0, int(chance.random() * num_there))
    num_together = 1 + int(chance.random() * min(MOST_TOGETHER, num_jobs))
    for position in range(1, num_together):
        _swap(around_K, position, position + int(chance.random() * (num_jobs - position)))
    together_A = around_K[:num_together].copy()
    return together_A[np.argsort(jobs.deadline_J[together_A], kind="mergesort")]


@compiled
def _swap(around_K: Integers, one: int, other: int) -> None:
    around_K[one], around_K[other] = around_K[other], around_K[one]


@compiled
def _fill_together(
    profile: Profile, schedules: Schedules, jobs: Jobs, anew_A: Integers, work: Workspace
) -> int:
    """These jobs around all others, or as they were if one does not fit: how many fillings it took."""
    before = picked(schedules, anew_A)
    for job in anew_A:
        release(profile, schedules, job)
    for number in range(anew_A.shape[0]):
        job = anew_A[number]
        by_s = float(jobs.deadline_J[job])
        count = minimum_share(profile, jobs, job, by_s, work.found, work.other, work.memory)
        if count < 0:
            for filled in anew_A[:number]:
                release(profile, schedules, filled)
            put(schedules, before, anew_A)
            for again in anew_A:
                reserve(profile, schedules, again)
            return number + 1
        write(schedules, job, work.found, count)
        reserve(profile, schedules, job)
    return anew_A.shape[0]
