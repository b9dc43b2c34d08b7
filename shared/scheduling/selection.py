"""Which jobs to refuse although they would fit: those that would crowd out more than they are worth.

Every promise is worth the same, so a GPU-second is worth one promise over the GPU-seconds of the dearest job that
there is still room for, if what was asked for lately comes again. How lately depends on who asks: a job competes with
all that come while its window is open, so the past is looked at through at least as long a window, fading
exponentially, and through all longer ones: what is taken by some deadline is taken by a later one, too.
Axes: N = submissions, by the GPU-seconds that they asked for; M = memories, each twice as long as the one before.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from shared.messages.demand import Demand
from shared.messages.remembered import remembered
from shared.scheduling.compiled import Floats, compiled
from shared.scheduling.job_table import Levels, SchedulableJob, levels_of
from shared.scheduling.profile import Profile

IDLE_UTILIZATION = 0.25
"""Up to this part of the GPU-seconds in its window, its own included, a job crowds out nobody worth a refusal."""
USABLE_CAPACITY = 0.7
"""The part of all GPU-seconds that smaller jobs may ask for before a larger one has to stand back."""
SHORTEST_MEMORY_S = 3600.0
MEMORY_PER_WINDOW = 0.75
MEMORIES_OF_ALL = 8.0
"""Times as long as anything is known: hardly anything fades in so long a memory, nor in longer ones."""
FEWEST_SUBMISSIONS = 8
"""Before so many were seen, apart from each other, nothing is known about what will come."""
RUSH_UTILIZATION = 0.5
"""The same, while all that is known is one rush: it may come again, or not."""
TOGETHER_S = 30.0
"""Who asks so soon after another asks together with it."""
LONGEST_S = 2.0**32


class Prices(NamedTuple):
    """What follows from what was asked for lately. observed_s: for how long that is known; is_one_rush: it was asked at
    hardly more than one instant."""

    dearest_M: Floats
    observed_s: float
    is_one_rush: bool
    num_gpus: int
    now_s: float


class Selection:
    """What may be asked for at one instant. coming: GPU-seconds of the wishes at hand that are not decided yet."""

    def __init__(self, demand: Demand, coming: Sequence[float], now_s: float, num_gpus: int) -> None:
        newest = np.array(demand.newest, np.float64).reshape(-1, 2)
        numbers = np.concatenate((_in_chunks(demand.full), newest))
        self._gpu_seconds_N = np.concatenate((numbers[:, 1], np.array(coming, np.float64)))
        self._age_s_N = np.concatenate((now_s - numbers[:, 0], np.zeros(len(coming))))
        self._observed_s = now_s - demand.since_s if demand.since_s is not None else 0.0
        self._num_gpus, self._now_s = num_gpus, now_s

    @property
    def knows_enough(self) -> bool:
        """Whether one submission more makes no difference to what is priced at all."""
        return len(self._gpu_seconds_N) >= FEWEST_SUBMISSIONS

    def dearest_gpu_seconds(self, window_s: float) -> float:
        """The most GPU-seconds for which a job with such a window is taken beside all others; inf if there is no limit.

        No job stands in its own way: whether it is among the submissions yet makes no difference.
        """
        return _dearest_in(self._prices, float(window_s))

    def is_too_dear(self, job: SchedulableJob, free: Profile) -> bool:
        """Whether it would crowd out more than it is worth; free: what no promise holds.

        With more time, less work or more GPUs nothing becomes too dear.
        """
        return _is_too_dear(self._prices, free, levels_of(job), job.remaining_iterations, job.deadline_s)

    def first_worth_s(
        self, job: SchedulableJob, from_s: float, within_s: float, free: Profile
    ) -> float | None:
        """The first deadline from this one on, in steps of a second, at which the job is not too dear; None if none is.

        within_s: to so many seconds, 1 at least.
        """
        from_s = float(from_s)  # a whole number would be compiled apart
        levels, left = levels_of(job), job.remaining_iterations
        more_s = _first_worth(self._prices, free, levels, left, from_s, within_s)
        return from_s + more_s if more_s >= 0.0 else None

    @cached_property
    def _prices(self) -> Prices:
        order = np.argsort(self._gpu_seconds_N, kind="stable")
        dearest_M = _dearest(
            self._gpu_seconds_N[order], self._age_s_N[order], self._observed_s, self._num_gpus
        )
        is_one_rush = _is_one_rush(self._age_s_N)
        return Prices(dearest_M, self._observed_s, is_one_rush, self._num_gpus, self._now_s)


def least_gpu_seconds(job: SchedulableJob, now_s: float) -> float:
    """To keep the deadline on an empty cluster, staying at one number of GPUs; inf if none is fast enough."""
    return _least_gpu_seconds(levels_of(job), job.remaining_iterations, job.deadline_s - now_s)


@remembered
def _in_chunks(full: tuple[tuple[float, ...], ...]) -> Floats:
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
def _dearest(gpu_seconds_N: Floats, age_s_N: Floats, observed_s: float, num_gpus: int) -> Floats:
    """The dearest job to which those that ask for less leave room, in a memory and in all longer ones.

    gpu_seconds_N: the smallest first.
    """
    num_asked, num_memories, longest_s = gpu_seconds_N.shape[0], 1, SHORTEST_MEMORY_S
    while longest_s < MEMORIES_OF_ALL * observed_s:
        num_memories, longest_s = num_memories + 1, 2.0 * longest_s
    dearest_M = np.full(num_memories, np.inf)
    if num_asked < FEWEST_SUBMISSIONS:
        return dearest_M
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
                dearest_M[memory] = gpu_seconds_N[index]
            fading *= fading  # in half of the time
    least = np.inf
    for memory in range(num_memories - 1, -1, -1):
        if spent_M[memory] > capacity_M[memory]:
            least = min(least, dearest_M[memory])
        dearest_M[memory] = least
    return dearest_M


@compiled
def _dearest_in(prices: Prices, window_s: float) -> float:
    """In the shortest memory that is long enough for a job with such a window."""
    memory, memory_s = 0, SHORTEST_MEMORY_S
    while memory_s < MEMORY_PER_WINDOW * window_s and memory < prices.dearest_M.shape[0] - 1:
        memory, memory_s = memory + 1, 2.0 * memory_s
    return float(prices.dearest_M[memory])


@compiled
def _is_one_rush(oldest_first_s_N: Floats) -> bool:
    """Whether fewer than so many instants, apart from each other, were seen at which somebody asked."""
    num_instants, from_s = 0, np.inf
    for age_s in oldest_first_s_N:
        if age_s < from_s - TOGETHER_S:
            num_instants, from_s = num_instants + 1, age_s
            if num_instants == FEWEST_SUBMISSIONS:
                return False
    return True


@compiled
def _is_too_dear(prices: Prices, free: Profile, levels: Levels, left: float, deadline_s: float) -> bool:
    window_s = deadline_s - prices.now_s
    needed = _least_gpu_seconds(levels, left, window_s)
    if needed <= _dearest_in(prices, window_s):
        return False
    is_rush = prices.is_one_rush and prices.observed_s < window_s
    unpriced = RUSH_UTILIZATION if is_rush else IDLE_UTILIZATION
    return not _leaves_idle(free, prices, needed, deadline_s, unpriced)


@compiled
def _leaves_idle(free: Profile, prices: Prices, needed: float, deadline_s: float, unpriced: float) -> bool:
    """Whether, up to some instant by the deadline, this and all promises need no larger part of all GPU-seconds."""
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
def _first_worth(
    prices: Prices, free: Profile, levels: Levels, left: float, from_s: float, within_s: float
) -> float:
    """Whole seconds after from_s: the window doubles until the job is not too dear, then it is halved again; -1 if it
    is always."""
    low_s, high_s = 0.0, 0.0
    while _is_too_dear(prices, free, levels, left, from_s + high_s):
        low_s, high_s = high_s, 2.0 * high_s if high_s > 0.0 else max(math.ceil(from_s - prices.now_s), 60.0)
        if high_s > LONGEST_S:
            return -1.0
    while high_s - low_s > within_s:
        middle_s = (low_s + high_s) // 2.0
        if _is_too_dear(prices, free, levels, left, from_s + middle_s):
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
