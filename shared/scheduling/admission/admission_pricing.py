"""Selective admission: which jobs to reject although they fit, because they would crowd out promises of higher value.

Every promise has the same value. A job costs the promises that it displaces: of the jobs that recent demand leads to
expect, a fluid can promise so many fewer beside it (`expected_jobs`). More than one is too much.
Monotone by construction: the expected jobs and the buckets do not depend on the job that is priced, and more time or
less work only reduce what it displaces, as do more GPUs if there is space for it (docs/adr/0041).
Axes: as in `expected_jobs`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.expected_jobs import (
    USABLE_CAPACITY,
    ExpectedJobs,
    expected_jobs,
    free_space,
    most_promises,
)
from elasticflow.shared.scheduling.availability import fill_many_jobs
from elasticflow.shared.scheduling.availability.fill_one_job import Jobs
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.job_table import Levels, SchedulableJob, levels_of
from elasticflow.shared.state.demand import Demand

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
NO_COMMAND = -1

Submitted = tuple[float, float]
"""Least GPU-seconds of a submission, and seconds to its deadline."""


class _Space(NamedTuple):
    """What promises leave. unpriced_B: GPU-seconds by a bucket's end that cost nothing."""

    edges_T: Floats
    space_BB: Floats
    unpriced_B: Floats


class AdmissionPricing:
    """Prices at one instant.

    coming: the commands of this decision that are still undecided. They count as demand for each other. decided:
    submissions at this instant that are not in the demand yet.
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
        self._num_submissions = len(self._history_H) + len(coming)
        self._coming = [submitted for submitted in coming if submitted[0] < math.inf]
        self.now_s = now_s
        self._since_s = now_s if demand.since_s is None else demand.since_s
        self._left_P, self._window_s_P = _promised(plan.table.jobs, plan.promised, now_s)
        self._num_gpus = plan.num_gpus
        self._spaces = dict[int, _Space]()
        self._expected = dict[int, ExpectedJobs]()
        self._promises = dict[tuple[float, int, int], Floats]()

    @property
    def knows_enough(self) -> bool:
        """Whether enough submissions were observed to set prices at all."""
        return self._num_submissions >= FEWEST_SUBMISSIONS

    def displaced_promises(self, job: SchedulableJob) -> float:
        """How many expected promises the job displaces. It does not compete with itself."""
        return float(self._displaced_by(submitted(job, self.now_s)).sum())

    def most_displaced_within_s(self, job: SchedulableJob) -> tuple[float, float]:
        """The bucket of time in which most of the displaced promises are due: from when until when."""
        asked = submitted(job, self.now_s)
        edges_T, bucket = self._space(self._itself(asked)).edges_T, int(self._displaced_by(asked).argmax())
        return self.now_s + float(edges_T[bucket]), self.now_s + float(edges_T[bucket + 1])

    def is_overpriced(self, job: SchedulableJob) -> bool:
        """Whether the job displaces more than its value."""
        return self.displaced_promises(job) > MOST_DISPLACED

    def price_limit_gpu_seconds(self, job: SchedulableJob) -> float:
        """GPU-seconds for which a job with this window is taken; inf if this job is taken.

        What is displaced is convex in the GPU-seconds, as far as there is space for them.
        """
        displaced = self.displaced_promises(job)
        if displaced <= MOST_DISPLACED:
            return math.inf
        asked = submitted(job, self.now_s)
        edges_T, space_BB, _ = self._space(self._itself(asked))
        needed, bucket = _within_buckets(edges_T, asked)
        space = max(float(space_BB[0, bucket:].min()), 0.0)
        return asked[0] * min(needed, space) / (needed * displaced)

    def first_affordable_s(self, job: SchedulableJob, from_s: float, within_s: float) -> float | None:
        """The first deadline from `from_s` on, in whole seconds, at which the job is not overpriced; None if there is
        none.

        within_s: the precision in seconds, at least 1.
        """

        def is_overpriced(more_s: float) -> bool:
            return self.is_overpriced(replace(job, deadline_s=from_s + more_s))

        low_s, high_s = 0.0, 0.0
        while is_overpriced(high_s):
            low_s, high_s = high_s, 2.0 * high_s if high_s > 0.0 else max(math.ceil(from_s - self.now_s), 60.0)
            if high_s > LONGEST_S:
                return None
        while high_s - low_s > within_s:
            middle_s = (low_s + high_s) // 2.0
            low_s, high_s = (middle_s, high_s) if is_overpriced(middle_s) else (low_s, middle_s)
        return from_s + high_s

    def _displaced_by(self, asked: Submitted) -> Floats:
        """By the bucket in which they are due."""
        if not self.knows_enough or not math.isfinite(asked[0]):
            return np.zeros(NUM_BUCKETS)
        itself = self._itself(asked)
        edges_T, _, unpriced_B = self._space(itself)
        needed, bucket = _within_buckets(edges_T, asked)
        if needed <= unpriced_B[: bucket + 1].max():
            return np.zeros(NUM_BUCKETS)
        return self._promises_beside(0.0, 0, itself) - self._promises_beside(needed, bucket, itself)

    def _promises_beside(self, needed: float, bucket: int, itself: int) -> Floats:
        """How many expected promises can be kept beside these GPU-seconds by the end of a bucket."""
        key = (needed, bucket, itself)
        if key not in self._promises:
            space_BB = self._space(itself).space_BB
            self._promises[key] = most_promises(space_BB, self._expected_beside(itself), needed, bucket)
        return self._promises[key]

    def _itself(self, asked: Submitted) -> int:
        """Which undecided command asks for this."""
        return self._coming.index(asked) if asked in self._coming else NO_COMMAND

    def _expected_beside(self, itself: int) -> ExpectedJobs:
        """The other undecided commands, and as many later ones as the history and these lead to expect."""
        if itself not in self._expected:
            coming_C, history_H = self._demand_beside(itself)
            edges_T = self._space(itself).edges_T
            self._expected[itself] = expected_jobs(history_H, coming_C, edges_T, self.now_s, self._since_s)
        return self._expected[itself]

    def _demand_beside(self, itself: int) -> tuple[Floats, Floats]:
        """The other undecided commands, and the history with these."""
        others = [each for index, each in enumerate(self._coming) if index != itself]
        coming_C = np.array(others, np.float64).reshape(-1, 2)
        return coming_C, np.concatenate((self._history_H, np.insert(coming_C, 0, self.now_s, axis=1)))

    def _space(self, itself: int) -> _Space:
        """In buckets that reach beyond the usual deadlines."""
        if itself not in self._spaces:
            _, history_H = self._demand_beside(itself)
            usual_s = float(np.quantile(history_H[:, 2], USUAL_WINDOW)) if len(history_H) else 0.0
            edges_T = _edges(HORIZON * max(self._window_s_P.max(initial=0.0), usual_s, FIRST_BUCKET_S))
            space_BB = free_space(edges_T, self._left_P, self._window_s_P, self._num_gpus)
            unpriced_B = space_BB[0] - (USABLE_CAPACITY - IDLE_UTILIZATION) * self._num_gpus * edges_T[1:]
            self._spaces[itself] = _Space(edges_T, space_BB, unpriced_B)
        return self._spaces[itself]


def _edges(longest_s: float) -> Floats:
    growth = (longest_s / FIRST_BUCKET_S) ** (1.0 / (NUM_BUCKETS - 1))
    return np.array([0.0, *(FIRST_BUCKET_S * growth**bucket for bucket in range(NUM_BUCKETS))])


def _within_buckets(edges_T: Floats, asked: Submitted) -> tuple[float, int]:
    """The GPU-seconds of a job within all buckets, and the last bucket that ends in its window."""
    least, window_s = asked
    bucket = int(edges_T.searchsorted(window_s, side="right")) - 2
    within = float(edges_T[-1]) / window_s if window_s > edges_T[-1] else 1.0
    return least * within, min(max(bucket, 0), NUM_BUCKETS - 1)


def submitted(job: SchedulableJob, now_s: float) -> Submitted:
    """What the submission of this job counts as."""
    return least_gpu_seconds(job, now_s), job.deadline_s - now_s


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
