"""Selective admission: which jobs to reject although they fit, because they would crowd out promises of higher value.

Every promise has the same value. The jobs that recent demand leads to expect are taken smallest first, as far as a
fluid has space for them within their windows beside all promises. This is the best such choice: the space of
intervals is a polymatroid. The price of a job is the number of these promises that it would displace.
Monotone by construction: the expected jobs and the buckets do not depend on the job that is priced, and more time, less
work or more GPUs only reduce what it displaces (docs/adr/0039).
Axes: H = submissions of the history; C = undecided commands; P = promised jobs; E = expected jobs, smallest first;
B = buckets of time from now on, each longer than the one before; T = their edges, one more; M = memories, each twice
as long as the one before.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.availability import fill_many_jobs
from elasticflow.shared.scheduling.availability.fill_one_job import Jobs
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.job_table import Levels, SchedulableJob, levels_of
from elasticflow.shared.state.pool import Demand

FEWEST_SUBMISSIONS = 8
"""With fewer submissions there is no price."""
NUM_BUCKETS = 16
FIRST_BUCKET_S = 300.0
USABLE_CAPACITY = 0.75
"""Of the GPU-seconds that promises leave, expected jobs can use this part."""
SHORTEST_MEMORY_S = 3600.0
MEMORY_PER_WAIT = 2.0
"""The least memory with which arrivals are expected, in multiples of the time until then."""
CELLS_PER_DOUBLING = 2.0
"""Submissions count as alike within half a doubling of GPU-seconds and a doubling of the window."""
LEAST_COUNT = 1e-4
LONGEST_S = 2.0**32
NO_JOB = -1

Submitted = tuple[float, float]
"""Least GPU-seconds of a submission, and seconds to its deadline."""


class ExpectedJobs(NamedTuple):
    """Jobs that arrive in the bucket first_E and are due in last_E, and the GPU-seconds of one and of all of them.

    rank_C: where the undecided commands are among them.
    """

    first_E: Integers
    last_E: Integers
    one_E: Floats
    all_E: Floats
    rank_C: Integers


class AdmissionPricing:
    """Prices at one instant. coming: the commands of this decision that are still undecided. They count as demand."""

    def __init__(
        self,
        demand: Demand,
        coming: Sequence[Submitted],
        now_s: float,
        plan: AdmissionPlan,
        older: Floats | None = None,
    ) -> None:
        newest = np.array(demand.newest, np.float64).reshape(-1, 3)
        self._history_H = np.concatenate((older_demand(demand.full) if older is None else older, newest))
        self._num_submissions = len(self._history_H) + len(coming)
        self._coming = [submitted for submitted in coming if submitted[0] < math.inf]
        self._since_s = now_s if demand.since_s is None else demand.since_s
        self._now_s = now_s
        left_P, window_s_P = _promised(plan.table.jobs, plan.promised, now_s)
        longest_s = max(window_s_P.max(initial=0.0), self._history_H[:, 2].max(initial=0.0), 2.0 * FIRST_BUCKET_S)
        self._edges_T: Floats = np.concatenate(([0.0], np.geomspace(FIRST_BUCKET_S, longest_s, NUM_BUCKETS)))
        self._space_BB = _space(self._edges_T, left_P, window_s_P, plan.num_gpus)
        self._displaced = dict[tuple[float, int, int], float]()

    @property
    def knows_enough(self) -> bool:
        """Whether enough submissions were observed to set prices at all."""
        return self._num_submissions >= FEWEST_SUBMISSIONS

    def displaced_promises(self, job: SchedulableJob) -> float:
        """How many expected promises the job displaces. It does not compete with itself."""
        least, window_s = least_gpu_seconds(job, self._now_s), job.deadline_s - self._now_s
        if not self.knows_enough or not math.isfinite(least):
            return 0.0
        return self._displaced_by(least, window_s)

    def is_overpriced(self, job: SchedulableJob) -> bool:
        """Whether the job displaces more than its value."""
        return self.displaced_promises(job) > 1.0

    def price_limit_gpu_seconds(self, job: SchedulableJob) -> float:
        """GPU-seconds for which a job with this window is taken; inf if this job is taken.

        What is displaced is convex in the GPU-seconds, as far as there is space for them.
        """
        displaced = self.displaced_promises(job)
        if displaced <= 1.0:
            return math.inf
        least, bucket = self._within_buckets(least_gpu_seconds(job, self._now_s), job.deadline_s - self._now_s)
        return min(least, float(self._space_BB[0, bucket:].min())) / displaced

    def first_affordable_s(self, job: SchedulableJob, from_s: float, within_s: float) -> float | None:
        """The first deadline from `from_s` on, in whole seconds, at which the job is not overpriced; None if there is
        none.

        within_s: the precision in seconds, at least 1.
        """
        levels, left, now_s = levels_of(job), job.remaining_iterations, self._now_s

        def is_overpriced(more_s: float) -> bool:
            window_s = from_s + more_s - now_s
            least = _least_gpu_seconds(levels, left, window_s)
            return self.knows_enough and least < math.inf and self._displaced_by(least, window_s) > 1.0

        low_s, high_s = 0.0, 0.0
        while is_overpriced(high_s):
            low_s, high_s = high_s, 2.0 * high_s if high_s > 0.0 else max(math.ceil(from_s - now_s), 60.0)
            if high_s > LONGEST_S:
                return None
        while high_s - low_s > within_s:
            middle_s = (low_s + high_s) // 2.0
            low_s, high_s = (middle_s, high_s) if is_overpriced(middle_s) else (low_s, middle_s)
        return from_s + high_s

    def _displaced_by(self, least: float, window_s: float) -> float:
        submitted = (least, window_s)
        itself = int(self._expected.rank_C[self._coming.index(submitted)]) if submitted in self._coming else NO_JOB
        needed, bucket = self._within_buckets(least, window_s)
        without = self._value(0.0, 0, itself)
        return without - self._value(needed, bucket, itself)

    def _value(self, needed: float, bucket: int, itself: int) -> float:
        """How many expected promises can be kept beside these GPU-seconds by the end of a bucket."""
        key = (needed, bucket, itself)
        if key not in self._displaced:
            self._displaced[key] = _most_promises(self._space_BB, self._expected, needed, bucket, itself)
        return self._displaced[key]

    def _within_buckets(self, least: float, window_s: float) -> tuple[float, int]:
        """The GPU-seconds of a job within all buckets, and the last bucket that ends in its window."""
        bucket = int(self._edges_T.searchsorted(window_s, side="right")) - 2
        return least * min(1.0, float(self._edges_T[-1]) / window_s), min(max(bucket, 0), NUM_BUCKETS - 1)

    @cached_property
    def _expected(self) -> ExpectedJobs:
        coming_C = np.array(self._coming, np.float64).reshape(-1, 2)
        return _expected_jobs(self._history_H, coming_C, self._edges_T, self._now_s, self._since_s)


def least_gpu_seconds(job: SchedulableJob, now_s: float) -> float:
    """GPU-seconds to meet the deadline alone, at one constant number of GPUs; inf if none is fast enough."""
    return _least_gpu_seconds(levels_of(job), job.remaining_iterations, job.deadline_s - now_s)


def older_demand(full: tuple[tuple[float, ...], ...]) -> Floats:
    """The full chunks of a demand as at_s, GPU-seconds and window, shape (N, 3)."""
    return np.fromiter(chain(*full), np.float64).reshape(-1, 3)


@compiled
def _least_gpu_seconds(levels: Levels, left: float, window_s: float) -> float:
    least = np.inf
    for level in range(levels.num_gpus_L.shape[0]):
        num_gpus, rate = levels.num_gpus_L[level], levels.rates_L[level]
        if left * num_gpus < least * rate and left / rate + levels.costs_L[level] <= window_s:
            least = left * num_gpus / rate
    return least


@compiled
def _promised(jobs: Jobs, rows_P: Integers, now_s: float) -> tuple[Floats, Floats]:
    """The GPU-seconds that promised jobs still need at least, and the seconds to their deadlines."""
    left_P, window_s_P = np.empty(rows_P.shape[0]), np.empty(rows_P.shape[0])
    for index in range(rows_P.shape[0]):
        row = rows_P[index]
        window_s_P[index] = jobs.deadline_J[row] - now_s
        left_P[index] = fill_many_jobs.least_gpu_seconds(jobs, row, window_s_P[index])
        if left_P[index] == np.inf:  # a late job is as fast as it can
            fastest = jobs.num_levels_J[row] - 1
            left_P[index] = jobs.remaining_J[row] * jobs.levels_JL[row, fastest] / jobs.rates_JL[row, fastest]
    return left_P, window_s_P


@compiled
def _bucket(edges_T: Floats, at_s: float) -> int:
    """The bucket that contains or ends at an instant; the last one for later instants."""
    return min(max(np.searchsorted(edges_T, at_s) - 1, 0), edges_T.shape[0] - 2)


@compiled
def _space(edges_T: Floats, left_P: Floats, window_s_P: Floats, num_gpus: int) -> Floats:
    """Usable GPU-seconds from the start of one bucket to the end of another beside all promises, earliest deadline
    first."""
    num_buckets = edges_T.shape[0] - 1
    due_B = np.zeros(num_buckets)
    for index in range(left_P.shape[0]):
        due_B[_bucket(edges_T, window_s_P[index])] += left_P[index]
    space_BB, due = np.zeros((num_buckets, num_buckets)), 0.0
    for last in range(num_buckets):
        due += due_B[last]
        for first in range(last + 1):
            gpu_seconds = num_gpus * (edges_T[last + 1] - edges_T[first])
            space_BB[first, last] = USABLE_CAPACITY * max(gpu_seconds - (due if first == 0 else 0.0), 0.0)
    return space_BB


@compiled
def _expected_jobs(history_H: Floats, coming_C: Floats, edges_T: Floats, now_s: float, since_s: float) -> ExpectedJobs:
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
        fading = math.exp((at_s - now_s) / (SHORTEST_MEMORY_S * 2.0 ** (num_memories - 1)))
        for memory in range(num_memories - 1, -1, -1):
            weight_KM[kind, memory] += fading
            fading *= fading  # the memory before is half as long
    most = num_coming + num_kinds * num_buckets
    first_E, last_E, one_E, all_E = np.zeros(most, np.int64), np.zeros(most, np.int64), np.empty(most), np.empty(most)
    num_expected = num_coming
    for index in range(num_coming):
        gpu_seconds, window_s = coming_C[index]
        last_E[index], one_E[index] = _bucket(edges_T, window_s), gpu_seconds
        all_E[index] = gpu_seconds * min(1.0, edges_T[-1] / window_s)
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
                first_E[num_expected], last_E[num_expected] = bucket, _bucket(edges_T, wait_s + window_s)
                one_E[num_expected] = gpu_seconds
                all_E[num_expected] = count * gpu_seconds * min(1.0, (edges_T[-1] - wait_s) / window_s)
                num_expected += 1
    order_E = np.argsort(one_E[:num_expected], kind="mergesort")
    rank_E = np.empty(num_expected, np.int64)
    rank_E[order_E] = np.arange(num_expected)
    return ExpectedJobs(first_E[order_E], last_E[order_E], one_E[order_E], all_E[order_E], rank_E[:num_coming])


@compiled
def _most_promises(space_BB: Floats, expected: ExpectedJobs, needed: float, by_bucket: int, itself: int) -> float:
    """How many expected promises can be kept beside `needed` GPU-seconds by the end of a bucket: the smallest first.

    itself: an expected job that does not count.
    """
    num_buckets, promises = space_BB.shape[0], 0.0
    left_BB, is_full_BB = space_BB.copy(), np.zeros(space_BB.shape, np.bool_)
    left_BB[0, by_bucket:] -= needed
    for index in range(expected.one_E.shape[0]):
        first, last = expected.first_E[index], expected.last_E[index]
        if index == itself or is_full_BB[first, last]:
            continue
        part = expected.all_E[index]
        for start in range(first + 1):
            for end in range(last, num_buckets):
                part = min(part, left_BB[start, end])
        is_full_BB[first, last] = part < expected.all_E[index]
        if part <= 0.0:
            continue
        promises += part / expected.one_E[index]
        for start in range(first + 1):
            for end in range(last, num_buckets):
                left_BB[start, end] -= part
    return promises
