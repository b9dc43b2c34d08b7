"""The jobs that recent demand leads to expect, and how many of them a fluid can promise beside what is promised.

Expected jobs are taken smallest first, as far as GPU-seconds are left within their windows. This is the best
choice, because the space of intervals is a polymatroid. All steps are numba loops.
Axes: H = submissions of the history; C = undecided commands; P = promised jobs; E = expected jobs, smallest first;
B = buckets of time from now on, longer and longer after the first; T = their edges, one more; K = kinds of alike
submissions; M = memories, each twice as long as the one before.
"""

import math
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled

USABLE_CAPACITY = 0.77
"""Promised and expected jobs together can use this part of all GPU-seconds."""
SHORTEST_MEMORY_S = 3600.0
MEMORY_PER_WAIT = 2.0
"""The least memory with which arrivals are expected, in multiples of the time until then."""
CELLS_PER_DOUBLING = 2.0
"""Submissions count as alike within half a doubling of GPU-seconds and a doubling of the window."""
LEAST_COUNT = 1e-4


class ExpectedJobs(NamedTuple):
    """Jobs that arrive in the bucket first_E and are due in last_E, and the GPU-seconds of one and of all of them."""

    first_E: Integers
    last_E: Integers
    one_E: Floats
    all_E: Floats


@compiled
def bucket_at(edges_T: Floats, at_s: float) -> int:
    """The bucket that contains or ends at an instant; the last one for later instants."""
    return min(max(np.searchsorted(edges_T, at_s) - 1, 0), edges_T.shape[0] - 2)


@compiled
def free_space(edges_T: Floats, left_P: Floats, window_s_P: Floats, num_gpus: int) -> Floats:
    """Usable GPU-seconds from the start of one bucket to the end of another beside all promises, earliest deadline
    first."""
    num_buckets = edges_T.shape[0] - 1
    due_B = np.zeros(num_buckets)
    for index in range(left_P.shape[0]):
        due_B[bucket_at(edges_T, window_s_P[index])] += left_P[index]
    space_BB, due = np.zeros((num_buckets, num_buckets)), 0.0
    for last in range(num_buckets):
        due += due_B[last]
        for first in range(last + 1):
            space_BB[first, last] = USABLE_CAPACITY * num_gpus * (edges_T[last + 1] - edges_T[first])
        space_BB[0, last] -= due
    return space_BB


@compiled
def expected_jobs(history_H: Floats, coming_C: Floats, edges_T: Floats, now_s: float, since_s: float) -> ExpectedJobs:
    """The undecided commands now, and in each bucket arrivals as often as in a memory of the past that is long enough.

    Alike submissions are one kind of jobs.
    """
    num_buckets, num_kinds, num_memories = edges_T.shape[0] - 1, 0, 1
    while SHORTEST_MEMORY_S * 2.0 ** (num_memories - 1) < MEMORY_PER_WAIT * edges_T[-1]:
        num_memories += 1
    num_submissions, num_coming = history_H.shape[0], coming_C.shape[0]
    kind_of = np.full((256, 64), -1)
    sums = np.zeros((num_submissions, 3))  # by kind: submissions, GPU-seconds, window
    weight_KM = np.zeros((num_submissions, num_memories))
    for index in range(num_submissions):
        at_s, gpu_seconds, window_s = history_H[index]
        size = min(max(int(CELLS_PER_DOUBLING * (math.log2(gpu_seconds) + 24.0)), 0), 255)
        length = min(max(int(math.log2(max(window_s, 1.0))), 0), 63)
        if kind_of[size, length] < 0:
            kind_of[size, length], num_kinds = num_kinds, num_kinds + 1
        kind = kind_of[size, length]
        sums[kind] += np.array([1.0, gpu_seconds, window_s])
        fading = math.exp(min(at_s - now_s, 0.0) / (SHORTEST_MEMORY_S * 2.0 ** (num_memories - 1)))
        for memory in range(num_memories - 1, -1, -1):
            weight_KM[kind, memory] += fading
            fading *= fading  # the memory before is half as long
    most = num_coming + num_kinds * num_buckets
    first_E, last_E, one_E, all_E = np.zeros(most, np.int64), np.zeros(most, np.int64), np.empty(most), np.empty(most)
    num_expected = num_coming
    for index in range(num_coming):
        gpu_seconds, window_s = coming_C[index]
        last_E[index], one_E[index] = bucket_at(edges_T, window_s), gpu_seconds
        all_E[index] = gpu_seconds * edges_T[-1] / max(window_s, edges_T[-1])
    observed_s = max(now_s - since_s, SHORTEST_MEMORY_S)
    for bucket in range(num_buckets):
        wait_s, memory = 0.5 * (edges_T[bucket] + edges_T[bucket + 1]), 0
        while SHORTEST_MEMORY_S * 2.0**memory < MEMORY_PER_WAIT * wait_s:
            memory += 1
        memory_s = SHORTEST_MEMORY_S * 2.0**memory
        lasts_s = edges_T[bucket + 1] - edges_T[bucket]
        scale = lasts_s / (memory_s * -math.expm1(-observed_s / memory_s))
        for kind in range(num_kinds):
            count = scale * weight_KM[kind, memory]
            if count > LEAST_COUNT:
                gpu_seconds, window_s = sums[kind, 1] / sums[kind, 0], sums[kind, 2] / sums[kind, 0]
                first_E[num_expected], last_E[num_expected] = bucket, bucket_at(edges_T, wait_s + window_s)
                one_E[num_expected] = gpu_seconds
                rest_s = edges_T[-1] - wait_s
                all_E[num_expected] = count * gpu_seconds * rest_s / max(window_s, rest_s)
                num_expected += 1
    order_E = np.argsort(one_E[:num_expected], kind="mergesort")
    return ExpectedJobs(first_E[order_E], last_E[order_E], one_E[order_E], all_E[order_E])


@compiled
def most_promises(space_BB: Floats, expected: ExpectedJobs, needed: float, by_bucket: int) -> Floats:
    """How many expected promises can be kept beside `needed` GPU-seconds by the end of a bucket: the smallest first.

    By the bucket in which they are due.
    """
    num_buckets = space_BB.shape[0]
    promises_B, left_BB, is_full_BB = np.zeros(num_buckets), space_BB.copy(), np.zeros(space_BB.shape, np.bool_)
    left_BB[0, by_bucket:] -= needed
    for index in range(expected.one_E.shape[0]):
        first, last = expected.first_E[index], expected.last_E[index]
        if is_full_BB[first, last]:
            continue
        part = expected.all_E[index]
        for start in range(first + 1):
            for end in range(last, num_buckets):
                part = min(part, left_BB[start, end])
        is_full_BB[first, last] = part < expected.all_E[index]
        if part <= 0.0:
            continue
        promises_B[last] += part / expected.one_E[index]
        for start in range(first + 1):
            for end in range(last, num_buckets):
                left_BB[start, end] -= part
    return promises_B
