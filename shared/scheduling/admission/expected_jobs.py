"""The jobs that recent demand leads to expect, and how many of them a fluid can promise beside what is promised.

Expected jobs are taken smallest first, as far as GPU-seconds are left within their windows. This is the best
choice, because the space of intervals is a polymatroid. All steps are numba loops. One forecast serves all commands
of a decision, although none of them competes with itself.
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
NO_COMMAND = -1


class Forecast(NamedTuple):
    """What is known of the submissions of the past and of now.

    count_K, gpu_seconds_K, window_s_K: how many are of a kind, and what they ask for in sum. weight_KM: how many of
    them each memory counts.
    coming_C2: GPU-seconds and window of the undecided commands. kind_C: theirs. by_size_C: the smallest first.
    """

    count_K: Floats
    gpu_seconds_K: Floats
    window_s_K: Floats
    weight_KM: Floats
    coming_C2: Floats
    kind_C: Integers
    by_size_C: Integers


class ExpectedJobs(NamedTuple):
    """Jobs that arrive in the bucket first_E and are due in last_E, and the GPU-seconds of one and of all of them."""

    first_E: Integers
    last_E: Integers
    one_E: Floats
    all_E: Floats


def num_memories(longest_s: float) -> int:
    """So many that the last one is long enough to expect arrivals until then."""
    return max(math.ceil(math.log2(MEMORY_PER_WAIT * longest_s / SHORTEST_MEMORY_S)), 0) + 1


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
def forecast(history_H: Floats, coming_C2: Floats, now_s: float, num_memories: int) -> Forecast:
    """Alike submissions are one kind of jobs. The undecided commands count as submitted now."""
    num_history, num_coming = history_H.shape[0], coming_C2.shape[0]
    num_kinds, kind_of = 0, np.full((256, 64), -1)
    sums_3K = np.zeros((3, num_history + num_coming))  # submissions, GPU-seconds, window
    weight_KM = np.zeros((num_history + num_coming, num_memories))
    kind_C = np.empty(num_coming, np.int64)
    for index in range(num_history + num_coming):
        fading = 1.0
        if index < num_history:
            at_s, gpu_seconds, window_s = history_H[index]
            fading = math.exp(min(at_s - now_s, 0.0) / (SHORTEST_MEMORY_S * 2.0 ** (num_memories - 1)))
        else:
            gpu_seconds, window_s = coming_C2[index - num_history]
        size = min(max(int(CELLS_PER_DOUBLING * (math.log2(gpu_seconds) + 24.0)), 0), 255)
        length = min(max(int(math.log2(max(window_s, 1.0))), 0), 63)
        if kind_of[size, length] < 0:
            kind_of[size, length], num_kinds = num_kinds, num_kinds + 1
        kind = kind_of[size, length]
        if index >= num_history:
            kind_C[index - num_history] = kind
        sums_3K[0, kind] += 1.0
        sums_3K[1, kind] += gpu_seconds
        sums_3K[2, kind] += window_s
        for memory in range(num_memories - 1, -1, -1):
            weight_KM[kind, memory] += fading
            fading *= fading  # the memory before is half as long
    return Forecast(
        sums_3K[0, :num_kinds],
        sums_3K[1, :num_kinds],
        sums_3K[2, :num_kinds],
        weight_KM[:num_kinds],
        coming_C2,
        kind_C,
        np.argsort(coming_C2[:, 0], kind="mergesort"),
    )


@compiled
def expected_jobs(forecast: Forecast, itself: int, edges_T: Floats, observed_s: float) -> ExpectedJobs:
    """The undecided commands now, and in each bucket arrivals as often as in a memory of the past that is long enough.

    itself: the command that is left out, as if it were not there; or NO_COMMAND.
    """
    num_buckets, num_kinds, num_coming = edges_T.shape[0] - 1, forecast.count_K.shape[0], forecast.kind_C.shape[0]
    kind_of_it = forecast.kind_C[itself] if itself >= 0 else NO_COMMAND
    size_K, window_s_K = forecast.gpu_seconds_K / forecast.count_K, forecast.window_s_K / forecast.count_K
    if itself >= 0:
        others = forecast.count_K[kind_of_it] - 1.0
        if others > 0.0:
            size_K[kind_of_it] = (forecast.gpu_seconds_K[kind_of_it] - forecast.coming_C2[itself, 0]) / others
            window_s_K[kind_of_it] = (forecast.window_s_K[kind_of_it] - forecast.coming_C2[itself, 1]) / others
        else:
            size_K[kind_of_it] = np.inf
    wait_s_B, scale_B, memory_B = np.empty(num_buckets), np.empty(num_buckets), np.empty(num_buckets, np.int64)
    for bucket in range(num_buckets):
        wait_s_B[bucket], memory = 0.5 * (edges_T[bucket] + edges_T[bucket + 1]), 0
        while SHORTEST_MEMORY_S * 2.0**memory < MEMORY_PER_WAIT * wait_s_B[bucket]:
            memory += 1
        memory_s = SHORTEST_MEMORY_S * 2.0**memory
        memory_B[bucket], lasts_s = memory, edges_T[bucket + 1] - edges_T[bucket]
        scale_B[bucket] = lasts_s / (memory_s * -math.expm1(-observed_s / memory_s))
    most = num_coming + num_kinds * num_buckets
    first_E, last_E, one_E, all_E = np.zeros(most, np.int64), np.zeros(most, np.int64), np.empty(most), np.empty(most)
    num_expected, num_listed = 0, 0
    by_size_K = np.argsort(size_K, kind="mergesort")
    for rank in range(num_kinds + 1):
        kind = by_size_K[rank] if rank < num_kinds else NO_COMMAND
        while num_listed < num_coming:
            command = forecast.by_size_C[num_listed]
            gpu_seconds, window_s = forecast.coming_C2[command]
            if kind >= 0 and gpu_seconds > size_K[kind]:
                break
            num_listed += 1
            if command != itself:
                last_E[num_expected], one_E[num_expected] = bucket_at(edges_T, window_s), gpu_seconds
                all_E[num_expected] = gpu_seconds * edges_T[-1] / max(window_s, edges_T[-1])
                num_expected += 1
        if kind < 0 or size_K[kind] == np.inf:
            continue
        last = 0
        for bucket in range(num_buckets):
            weight = forecast.weight_KM[kind, memory_B[bucket]] - (1.0 if kind == kind_of_it else 0.0)
            while last < num_buckets - 1 and edges_T[last + 1] < wait_s_B[bucket] + window_s_K[kind]:
                last += 1
            if scale_B[bucket] * weight > LEAST_COUNT:
                first_E[num_expected], last_E[num_expected], one_E[num_expected] = bucket, last, size_K[kind]
                rest_s = edges_T[-1] - wait_s_B[bucket]
                gpu_seconds = scale_B[bucket] * weight * size_K[kind]
                all_E[num_expected] = gpu_seconds * rest_s / max(window_s_K[kind], rest_s)
                num_expected += 1
    return ExpectedJobs(first_E[:num_expected], last_E[:num_expected], one_E[:num_expected], all_E[:num_expected])


@compiled
def displaced_promises(space_BB: Floats, expected: ExpectedJobs, needed: float, by_bucket: int) -> Floats:
    """How many of the expected promises that can be kept are displaced by `needed` GPU-seconds by the end of a bucket.

    By the bucket in which they are due. Both with and without these GPU-seconds the smallest are kept first. Until the
    first one that is not kept whole beside them, both keep the same.
    """
    num_buckets = space_BB.shape[0]
    displaced_B, beside_BB = np.zeros(num_buckets), space_BB.copy()
    beside_BB[0, by_bucket:] -= needed
    without_BB, is_short = beside_BB, False
    is_full_BB, is_full_beside_BB = np.zeros(space_BB.shape, np.bool_), np.zeros(space_BB.shape, np.bool_)
    for index in range(expected.one_E.shape[0]):
        first, last, whole = expected.first_E[index], expected.last_E[index], expected.all_E[index]
        if is_full_BB[first, last]:
            continue
        kept = 0.0 if is_full_beside_BB[first, last] else _space_left(beside_BB, first, last, whole)
        is_full_beside_BB[first, last] = kept < whole
        if kept < whole and not is_short:
            without_BB, is_short = beside_BB.copy(), True
            without_BB[0, by_bucket:] += needed
        _use(beside_BB, first, last, kept)
        if is_short:
            possible = _space_left(without_BB, first, last, whole)
            is_full_BB[first, last] = possible < whole
            _use(without_BB, first, last, possible)
            displaced_B[last] += (possible - kept) / expected.one_E[index]
    return displaced_B


@compiled
def _space_left(left_BB: Floats, first: int, last: int, most: float) -> float:
    """GPU-seconds between the start of one bucket and the end of another, at most so many."""
    least = most
    for start in range(first + 1):
        for end in range(last, left_BB.shape[0]):
            least = min(least, left_BB[start, end])
    return max(least, 0.0)


@compiled
def _use(left_BB: Floats, first: int, last: int, gpu_seconds: float) -> None:
    if gpu_seconds > 0.0:
        for start in range(first + 1):
            for end in range(last, left_BB.shape[0]):
                left_BB[start, end] -= gpu_seconds
