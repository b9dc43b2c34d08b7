"""Selective admission: which jobs to reject although they fit, because they would crowd out promises of higher value.

Every promise has the same value. A job costs the promises that it displaces: of the jobs that recent demand leads to
expect, a fluid can promise so many fewer beside it (`expected_jobs`). More than one is too much.
Monotone by construction: the expected jobs and the buckets do not depend on the job that is priced, and more time or
less work only reduce what it displaces, as do more GPUs if there is space for it (docs/adr/0041).
Axes: as in `expected_jobs`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.availability import fill
from elasticflow.shared.scheduling.availability.fill import Jobs
from elasticflow.shared.scheduling.compiled_loops import Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.pool import Demand

# --- expected jobs -------------------------------------------------------------------------------------
# The jobs that recent demand leads to expect, and how many of them a fluid can promise beside what is promised.
#
# Expected jobs are taken smallest first, as far as GPU-seconds are left within their windows. This is the best
# choice, because the space of intervals is a polymatroid. All steps are numba loops. One forecast serves all commands
# of a decision, although none of them competes with itself. Axes: H = submissions of the history; C = undecided
# commands; P = promised jobs; E = expected jobs, smallest first; B = buckets of time from now on, longer and longer
# after the first; T = their edges, one more; K = kinds of alike submissions; M = memories, each twice as long as the
# one before.

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

    The result is by the bucket in which they are due. Both with and without these GPU-seconds the smallest are kept
    first. Until the first one that is not kept whole beside them, both keep the same.
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


# --- admission pricing ---------------------------------------------------------------------------------

FEWEST_SUBMISSIONS = 4
"""With fewer submissions there is no price."""
IDLE_UTILIZATION = 0.1
"""A job is not priced if it and all promises need at most this part of the GPU-seconds up to some instant in its
window.
"""
NUM_BUCKETS = 16
FIRST_BUCKET_S = 300.0
MOST_DISPLACED = 1.0 + 1e-6
"""A job may displace one promise; sums round."""
USUAL_WINDOW = 0.9
HORIZON = 2.0
"""The buckets end after so many times the longest promise, or window of this part of the recent submissions."""
LONGEST_S = 2.0**32

Submitted = tuple[float, float]
"""Least GPU-seconds of a submission, and seconds to its deadline."""
Levels = tuple[tuple[int, float, float], ...]
"""GPUs, iterations/s, and seconds of a resize to each useful level of a job."""


class AdmissionPricing:
    """Prices at one instant.

    coming: the commands of this decision that are still undecided. They count as demand for each other. decided:
    submissions at this instant that are not in the demand yet. knows_enough: whether enough submissions were observed
    to set prices at all.
    """

    def __init__(
        self,
        demand: Demand,
        coming: Sequence[Submitted],
        now_s: float,
        plan: AdmissionPlan,
        older: Floats | None = None,
        decided: Sequence[Submitted] = (),
    ) -> None:
        newest = np.array(demand.newest, np.float64).reshape(-1, 3)
        now = np.array([(now_s, *each) for each in decided if each[0] < math.inf], np.float64).reshape(-1, 3)
        self._history_H = np.concatenate((older_demand(demand.full) if older is None else older, newest, now))
        self.knows_enough = len(self._history_H) + len(coming) >= FEWEST_SUBMISSIONS
        coming = [submitted for submitted in coming if submitted[0] < math.inf]
        self._command_of = {asked: command for command, asked in reversed(list(enumerate(coming)))}
        self._coming_C2 = np.array(coming, np.float64).reshape(-1, 2)
        self._window_s_N = np.sort(np.concatenate((self._history_H[:, 2], self._coming_C2[:, 1])))
        self.now_s = now_s
        since_s = now_s if demand.since_s is None else demand.since_s
        self._observed_s = max(now_s - since_s, SHORTEST_MEMORY_S)
        self._forecast: Forecast | None = None
        self._left_P, self._window_s_P = _promised(plan.table.jobs, plan.promised, now_s)
        self._num_gpus = plan.num_gpus
        self._prices = dict[int, _Prices]()

    def displaced_promises(self, job: SchedulableJob) -> float:
        """How many expected promises the job displaces. It does not compete with itself."""
        asked = submitted(job, self.now_s)
        return float(self._for(asked).displaced_by(asked).sum()) if self._is_priced(asked) else 0.0

    def most_displaced_within_s(self, job: SchedulableJob) -> tuple[float, float]:
        """The bucket of time in which most of the displaced promises are due: from when until when."""
        asked = submitted(job, self.now_s)
        prices = self._for(asked)
        bucket = int(prices.displaced_by(asked).argmax()) if self._is_priced(asked) else 0
        return self.now_s + float(prices.edges_T[bucket]), self.now_s + float(prices.edges_T[bucket + 1])

    def is_overpriced(self, job: SchedulableJob) -> bool:
        """Whether the job displaces more than its value."""
        return self._is_overpriced(submitted(job, self.now_s))

    def price_limit_gpu_seconds(self, job: SchedulableJob) -> float:
        """GPU-seconds for which a job with this window is taken; inf if this job is taken.

        What is displaced is convex in the GPU-seconds, as far as there is space for them.
        """
        displaced = self.displaced_promises(job)
        if displaced <= MOST_DISPLACED:
            return math.inf
        asked = submitted(job, self.now_s)
        prices = self._for(asked)
        needed, bucket = prices.within_buckets(asked)
        return asked[0] * min(needed, prices.space_by(bucket)) / (needed * displaced)

    def first_affordable_s(self, job: SchedulableJob, from_s: float, within_s: float) -> float | None:
        """The first deadline from `from_s` on, in whole seconds, at which the job is not overpriced; None if there is
        none.

        within_s: the precision in seconds, at least 1.
        """
        levels, now_s = _levels_of(job), self.now_s

        def is_overpriced(more_s: float) -> bool:
            window_s = from_s + more_s - now_s
            return self._is_overpriced((_least_gpu_seconds(levels, job.remaining_iterations, window_s), window_s))

        low_s, high_s = 0.0, 0.0
        while is_overpriced(high_s):
            low_s, high_s = high_s, 2.0 * high_s if high_s > 0.0 else max(math.ceil(from_s - now_s), 60.0)
            if high_s > LONGEST_S:
                return None
        while high_s - low_s > within_s:
            middle_s = (low_s + high_s) // 2.0
            low_s, high_s = (middle_s, high_s) if is_overpriced(middle_s) else (low_s, middle_s)
        return from_s + high_s

    def _is_priced(self, asked: Submitted) -> bool:
        return self.knows_enough and asked[0] < math.inf

    def _is_overpriced(self, asked: Submitted) -> bool:
        return self._is_priced(asked) and self._for(asked).is_overpriced(asked)

    def _for(self, asked: Submitted) -> "_Prices":
        """The prices for the undecided command that asks for this, if any: it does not compete with itself."""
        itself = self._command_of.get(asked, NO_COMMAND)
        prices = self._prices.get(itself)
        if prices is None:
            usual_s = self._usual_window_s(itself)
            edges_T = _edges(HORIZON * max(self._window_s_P.max(initial=0.0), usual_s, FIRST_BUCKET_S))
            space_BB = free_space(edges_T, self._left_P, self._window_s_P, self._num_gpus)
            prices = _Prices(edges_T, space_BB, self._num_gpus, partial(self._expected, itself, edges_T))
            self._prices[itself] = prices
        return prices

    def _usual_window_s(self, itself: int) -> float:
        """The quantile `USUAL_WINDOW` of the windows of all submissions but one."""
        windows_s, left_out = self._window_s_N, len(self._window_s_N)
        if itself != NO_COMMAND:
            own_s: float = self._coming_C2[itself, 1]
            left_out = int(np.searchsorted(windows_s, own_s))
        last = len(windows_s) - (itself != NO_COMMAND) - 1
        if last < 0:
            return 0.0
        low, part = divmod(USUAL_WINDOW * last, 1.0)
        low_s, high_s = (float(windows_s[at + (at >= left_out)]) for at in (int(low), min(int(low) + 1, last)))
        return low_s + (high_s - low_s) * part

    def _expected(self, itself: int, edges_T: Floats) -> ExpectedJobs:
        if self._forecast is None:
            longest_s = HORIZON * max(self._window_s_P.max(initial=0.0), self._window_s_N.max(initial=FIRST_BUCKET_S))
            self._forecast = forecast(self._history_H, self._coming_C2, self.now_s, num_memories(longest_s))
        return expected_jobs(self._forecast, itself, edges_T, self._observed_s)


class _Prices:
    """The prices for one command, or for all that are no command of this decision.

    Each price that is computed bounds others, because less work, and a later deadline, displace no more.
    within_B: GPU-seconds by a bucket's end that are known to be affordable. beyond_B: that are known to be overpriced.
    """

    def __init__(self, edges_T: Floats, space_BB: Floats, num_gpus: int, expected: Callable[[], ExpectedJobs]) -> None:
        self.edges_T, self._space_BB = edges_T, space_BB
        self._expected = expected
        self._known: ExpectedJobs | None = None
        self._displaced = dict[tuple[float, int], Floats]()
        unpriced_B = space_BB[0] - (USABLE_CAPACITY - IDLE_UTILIZATION) * num_gpus * edges_T[1:]
        self._unpriced_B: list[float] = np.maximum.accumulate(unpriced_B).tolist()
        self._within_B, self._beyond_B = self._unpriced_B.copy(), [math.inf] * NUM_BUCKETS
        self._edges: list[float] = edges_T.tolist()

    def is_overpriced(self, asked: Submitted) -> bool:
        needed, bucket = self.within_buckets(asked)
        if needed <= self._within_B[bucket]:
            return False
        if needed >= self._beyond_B[bucket]:
            return True
        displaced = float(self._displaced_within(needed, bucket).sum())
        if displaced > MOST_DISPLACED:
            for earlier in range(bucket + 1):
                self._beyond_B[earlier] = min(self._beyond_B[earlier], needed)
        else:
            for later in range(bucket, NUM_BUCKETS):
                self._within_B[later] = max(self._within_B[later], needed)
        return displaced > MOST_DISPLACED

    def displaced_by(self, asked: Submitted) -> Floats:
        """The displaced promises, by the bucket in which they are due."""
        needed, bucket = self.within_buckets(asked)
        if needed <= self._unpriced_B[bucket]:
            return np.zeros(NUM_BUCKETS)
        return self._displaced_within(needed, bucket)

    def within_buckets(self, asked: Submitted) -> tuple[float, int]:
        """The GPU-seconds of a job within all buckets, and the last bucket that ends in its window."""
        least, window_s = asked
        bucket = bisect_right(self._edges, window_s) - 2
        within = self._edges[-1] / window_s if window_s > self._edges[-1] else 1.0
        return least * within, min(max(bucket, 0), NUM_BUCKETS - 1)

    def space_by(self, bucket: int) -> float:
        """The GPU-seconds that a job due by the end of a bucket can use at most."""
        return max(float(self._space_BB[0, bucket:].min()), 0.0)

    def _displaced_within(self, needed: float, bucket: int) -> Floats:
        key = (needed, bucket)
        if key not in self._displaced:
            if self._known is None:
                self._known = self._expected()
            self._displaced[key] = displaced_promises(self._space_BB, self._known, needed, bucket)
        return self._displaced[key]


def _edges(longest_s: float) -> Floats:
    growth = (longest_s / FIRST_BUCKET_S) ** (1.0 / (NUM_BUCKETS - 1))
    return np.array([0.0, *(FIRST_BUCKET_S * growth**bucket for bucket in range(NUM_BUCKETS))])


def submitted(job: SchedulableJob, now_s: float) -> Submitted:
    """What the submission of this job counts as."""
    return least_gpu_seconds(job, now_s), job.deadline_s - now_s


def least_gpu_seconds(job: SchedulableJob, now_s: float) -> float:
    """GPU-seconds to meet the deadline alone, at one constant number of GPUs; inf if none is fast enough."""
    return _least_gpu_seconds(_levels_of(job), job.remaining_iterations, job.deadline_s - now_s)


def older_demand(full: tuple[tuple[float, ...], ...]) -> Floats:
    """The full chunks of a demand as at_s, GPU-seconds and window, shape (N, 3)."""
    return np.fromiter(chain(*full), np.float64).reshape(-1, 3)


def _least_gpu_seconds(levels: Levels, left: float, window_s: float) -> float:
    least = math.inf
    for num_gpus, rate, cost_s in levels:
        if left * num_gpus < least * rate and left / rate + cost_s <= window_s:
            least = left * num_gpus / rate
    return least


def _levels_of(job: SchedulableJob) -> Levels:
    return job.curve.derived(_levels, job.resize_cost)


def _levels(curve: ScalingCurve, cost: ResizeCost) -> Levels:
    return tuple((level, curve.rate_by_num_gpus[level], cost.seconds(level)) for level in curve.levels)


@compiled
def _promised(jobs: Jobs, rows_P: Integers, now_s: float) -> tuple[Floats, Floats]:
    """The GPU-seconds that promised jobs still need at least, and the seconds to their deadlines."""
    left_P, window_s_P = np.empty(rows_P.shape[0]), np.empty(rows_P.shape[0])
    for index in range(rows_P.shape[0]):
        row = rows_P[index]
        window_s_P[index] = jobs.deadline_J[row] - now_s
        left_P[index] = fill.least_gpu_seconds(jobs, row, window_s_P[index])
        if left_P[index] == np.inf:  # a late job is as fast as it can
            fastest = jobs.num_levels_J[row] - 1
            left_P[index] = jobs.remaining_J[row] * jobs.levels_JL[row, fastest] / jobs.rates_JL[row, fastest]
    return left_P, window_s_P
