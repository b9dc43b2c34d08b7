"""Selective admission: which jobs to reject although they fit, because they would crowd out promises of higher value.

Every promise has the same value. So a GPU-second is worth one promise divided by the GPU-seconds of the most expensive
job that still fits if recent demand repeats. A job competes with all demand within its window. Past demand is
therefore weighted by exponential memories at least as long as the window, and by all longer memories: a job that is
accepted for one deadline is also accepted for a later one (docs/adr/0015, 0030).
Axes: N = submissions by requested GPU-seconds; M = memories, each twice as long as the one before.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.availability.availability_profile import AvailabilityProfile
from elasticflow.shared.scheduling.compiled.compile import Floats, compiled
from elasticflow.shared.scheduling.jobs.job_table import Levels, SchedulableJob, levels_of
from elasticflow.shared.state.pool import Demand

IDLE_UTILIZATION = 0.25
"""A job is not priced while it and all promises use at most this part of the GPU-seconds in its window."""
USABLE_CAPACITY = 0.7
"""Smaller jobs may request this part of all GPU-seconds before a larger job is rejected."""
SHORTEST_MEMORY_S = 3600.0
MEMORY_PER_WINDOW = 0.75
MEMORIES_OF_ALL = 8.0
"""The longest memory, in multiples of the observed time: older demand hardly fades in it."""
FEWEST_SUBMISSIONS = 8
"""With fewer separate submissions there is no price."""
RUSH_UTILIZATION = 0.5
"""As IDLE_UTILIZATION, while all observed demand is one rush, which may not repeat."""
TOGETHER_S = 30.0
"""Submissions within this time of each other count as one instant."""
LONGEST_S = 2.0**32


class Prices(NamedTuple):
    """Price limits that follow from recent demand.

    observed_s: how long demand has been observed. is_one_rush: all demand arrived at hardly more than one instant.
    """

    price_limit_M: Floats
    observed_s: float
    is_one_rush: bool
    num_gpus: int
    now_s: float


class AdmissionPricing:
    """Price limits at one instant. coming: GPU-seconds of the commands of this decision that are still undecided."""

    def __init__(
        self,
        demand: Demand,
        coming: Sequence[float],
        now_s: float,
        num_gpus: int,
        older: Floats | None = None,
    ) -> None:
        newest = np.array(demand.newest, np.float64).reshape(-1, 2)
        numbers = np.concatenate((older_demand(demand.full) if older is None else older, newest))
        self._gpu_seconds_N = np.concatenate((numbers[:, 1], np.array(coming, np.float64)))
        self._age_s_N = np.concatenate((now_s - numbers[:, 0], np.zeros(len(coming))))
        self._observed_s = now_s - demand.since_s if demand.since_s is not None else 0.0
        self._num_gpus, self._now_s = num_gpus, now_s

    @property
    def knows_enough(self) -> bool:
        """Whether enough submissions were observed to set prices at all."""
        return len(self._gpu_seconds_N) >= FEWEST_SUBMISSIONS

    def price_limit_gpu_seconds(self, window_s: float) -> float:
        """The most GPU-seconds for which a job with this window is accepted beside all others; inf if there is no
        limit.

        A job does not compete with itself: the result does not depend on whether it is already among the submissions.
        """
        return _price_limit_in(self._prices, float(window_s))

    def is_overpriced(self, job: SchedulableJob, free: AvailabilityProfile) -> bool:
        """Whether the job would crowd out more than its value. free: the GPUs that no promise holds.

        Monotone: more time, less work or more GPUs never make a job overpriced.
        """
        return _is_overpriced(self._prices, free, levels_of(job), job.remaining_iterations, job.deadline_s)

    def first_affordable_s(
        self, job: SchedulableJob, from_s: float, within_s: float, free: AvailabilityProfile
    ) -> float | None:
        """The first deadline from `from_s` on, in whole seconds, at which the job is not overpriced; None if there is
        none.

        within_s: the precision in seconds, at least 1.
        """
        from_s = float(from_s)  # an integer would compile a second specialization
        levels, left = levels_of(job), job.remaining_iterations
        more_s = _first_affordable(self._prices, free, levels, left, from_s, within_s)
        return from_s + more_s if more_s >= 0.0 else None

    @cached_property
    def _prices(self) -> Prices:
        order = np.argsort(self._gpu_seconds_N, kind="stable")
        price_limit_M = _price_limit(self._gpu_seconds_N[order], self._age_s_N[order], self._observed_s, self._num_gpus)
        is_one_rush = _is_one_rush(self._age_s_N)
        return Prices(price_limit_M, self._observed_s, is_one_rush, self._num_gpus, self._now_s)


def least_gpu_seconds(job: SchedulableJob, now_s: float) -> float:
    """GPU-seconds to meet the deadline alone, at one constant number of GPUs; inf if none is fast enough."""
    return _least_gpu_seconds(levels_of(job), job.remaining_iterations, job.deadline_s - now_s)


def older_demand(full: tuple[tuple[float, ...], ...]) -> Floats:
    """The full chunks of a demand as pairs of at_s and GPU-seconds, shape (N, 2)."""
    return np.fromiter(chain(*full), np.float64).reshape(-1, 2)


@compiled
def _least_gpu_seconds(levels: Levels, left: float, window_s: float) -> float:
    least = np.inf
    for level in range(levels.num_gpus_L.shape[0]):
        num_gpus, rate = levels.num_gpus_L[level], levels.rates_L[level]
        if left * num_gpus < least * rate and left / rate + levels.costs_L[level] <= window_s:
            least = left * num_gpus / rate
    return least


@compiled
def _price_limit(gpu_seconds_N: Floats, age_s_N: Floats, observed_s: float, num_gpus: int) -> Floats:
    """For each memory, and all longer ones, the largest job for which smaller requests leave capacity.

    gpu_seconds_N: ascending.
    """
    num_asked, num_memories, longest_s = gpu_seconds_N.shape[0], 1, SHORTEST_MEMORY_S
    while longest_s < MEMORIES_OF_ALL * observed_s:
        num_memories, longest_s = num_memories + 1, 2.0 * longest_s
    price_limit_M = np.full(num_memories, np.inf)
    if num_asked < FEWEST_SUBMISSIONS:
        return price_limit_M
    spent_M, capacity_M = np.zeros(num_memories), np.empty(num_memories)
    for memory in range(num_memories):
        memory_s = SHORTEST_MEMORY_S * 2.0**memory
        faded_s = memory_s * -math.expm1(-observed_s / memory_s)
        capacity_M[memory] = USABLE_CAPACITY * num_gpus * faded_s
    for index in range(num_asked):
        fading = math.exp(-age_s_N[index] / longest_s)
        for memory in range(num_memories - 1, -1, -1):
            if spent_M[memory] <= capacity_M[memory]:
                spent_M[memory] += gpu_seconds_N[index] * fading
                price_limit_M[memory] = gpu_seconds_N[index]
            fading *= fading  # the memory before is half as long
    least = np.inf
    for memory in range(num_memories - 1, -1, -1):
        if spent_M[memory] > capacity_M[memory]:
            least = min(least, price_limit_M[memory])
        price_limit_M[memory] = least
    return price_limit_M


@compiled
def _price_limit_in(prices: Prices, window_s: float) -> float:
    """The limit in the shortest memory that is long enough for this window."""
    memory, memory_s = 0, SHORTEST_MEMORY_S
    while memory_s < MEMORY_PER_WINDOW * window_s and memory < prices.price_limit_M.shape[0] - 1:
        memory, memory_s = memory + 1, 2.0 * memory_s
    return float(prices.price_limit_M[memory])


@compiled
def _is_one_rush(oldest_first_s_N: Floats) -> bool:
    """Whether submissions arrived at fewer than FEWEST_SUBMISSIONS separate instants."""
    num_instants, from_s = 0, np.inf
    for age_s in oldest_first_s_N:
        if age_s < from_s - TOGETHER_S:
            num_instants, from_s = num_instants + 1, age_s
            if num_instants == FEWEST_SUBMISSIONS:
                return False
    return True


@compiled
def _is_overpriced(prices: Prices, free: AvailabilityProfile, levels: Levels, left: float, deadline_s: float) -> bool:
    window_s = deadline_s - prices.now_s
    needed = _least_gpu_seconds(levels, left, window_s)
    if needed <= _price_limit_in(prices, window_s):
        return False
    is_rush = prices.is_one_rush and prices.observed_s < window_s
    unpriced = RUSH_UTILIZATION if is_rush else IDLE_UTILIZATION
    return not _leaves_idle(free, prices, needed, deadline_s, unpriced)


@compiled
def _leaves_idle(free: AvailabilityProfile, prices: Prices, needed: float, deadline_s: float, unpriced: float) -> bool:
    """Whether, up to some instant by the deadline, this job and all promises together need at most the unpriced part
    of the GPU-seconds.
    """
    busy = 0.0
    for piece in range(free.size[0]):
        start_s = free.start_B[piece]
        if start_s >= deadline_s:
            break
        end_s = min(free.start_B[piece + 1], deadline_s) if piece + 1 < free.size[0] else deadline_s
        busy += (prices.num_gpus - free.free_B[piece]) * (end_s - start_s)
        if busy + needed <= unpriced * prices.num_gpus * (end_s - prices.now_s):
            return True
    return False


@compiled
def _first_affordable(
    prices: Prices, free: AvailabilityProfile, levels: Levels, left: float, from_s: float, within_s: float
) -> float:
    """Whole seconds after from_s: the window doubles until the job is not overpriced, then is bisected; -1 if it
    always is.
    """
    low_s, high_s = 0.0, 0.0
    while _is_overpriced(prices, free, levels, left, from_s + high_s):
        low_s, high_s = high_s, 2.0 * high_s if high_s > 0.0 else max(math.ceil(from_s - prices.now_s), 60.0)
        if high_s > LONGEST_S:
            return -1.0
    while high_s - low_s > within_s:
        middle_s = (low_s + high_s) // 2.0
        if _is_overpriced(prices, free, levels, left, from_s + middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
