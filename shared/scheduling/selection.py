"""Which jobs to refuse although they would fit: those that would crowd out more than they are worth.

Every promise is worth the same, so a GPU-second is worth one promise over the GPU-seconds of the dearest job that
there is still room for, if what was asked for lately comes again. How lately depends on who asks: a job competes with
all that come while its window is open, so the past is looked at through as long a window, fading exponentially.
Axis: N = submissions, by the GPU-seconds that they asked for.
"""

import math
from collections.abc import Iterable
from itertools import chain

import numpy as np

from shared.messages.demand import Demand
from shared.messages.remembered import remembered
from shared.scheduling.compiled import Floats, compiled

IDLE_UTILIZATION = 0.25
"""Up to this part of the GPU-seconds in its window, its own included, a job crowds out nobody worth a refusal."""
IDLE_BESIDE = 0.05
"""Nor does any job that finds no more than this part of its window promised: the pool is as good as idle."""
USABLE_CAPACITY = 0.7
"""The part of all GPU-seconds that smaller jobs may ask for before a larger one has to stand back."""
SHORTEST_MEMORY_S = 3600.0
MEMORY_PER_WINDOW = 0.75
FEWEST_SUBMISSIONS = 20
"""Before so many were seen nothing is known about what will come."""


class Selection:
    """What may be asked for at one instant. coming: GPU-seconds of the wishes at hand that are not decided yet."""

    def __init__(self, demand: Demand, coming: Iterable[float], now_s: float, num_gpus: int) -> None:
        newest = np.array(demand.newest, np.float64).reshape(-1, 2)
        numbers = np.concatenate((_in_chunks(demand.full), newest))
        at_hand = np.fromiter(coming, np.float64)
        gpu_seconds = np.concatenate((numbers[:, 1], at_hand))
        order = np.argsort(gpu_seconds, kind="stable")
        self._gpu_seconds_N: Floats = gpu_seconds[order]
        self._age_s_N: Floats = np.concatenate((now_s - numbers[:, 0], np.zeros(len(at_hand))))[order]
        self._observed_s = now_s - demand.since_s if demand.since_s is not None else 0.0
        self._num_gpus = num_gpus

    def dearest_gpu_seconds(self, window_s: float) -> float:
        """The most GPU-seconds for which a job with such a window is taken beside all others; inf if there is no limit.

        No job stands in its own way: whether it is among the submissions yet makes no difference.
        """
        if len(self._gpu_seconds_N) < FEWEST_SUBMISSIONS:
            return math.inf
        memory_s = max(SHORTEST_MEMORY_S, MEMORY_PER_WINDOW * window_s)
        observed_s = memory_s * -math.expm1(-self._observed_s / memory_s)
        capacity = USABLE_CAPACITY * self._num_gpus * observed_s
        return _dearest(self._gpu_seconds_N, self._age_s_N, memory_s, capacity)


@remembered
def _in_chunks(full: tuple[tuple[float, ...], ...]) -> Floats:
    return np.fromiter(chain(*full), np.float64).reshape(-1, 2)


@compiled
def _dearest(gpu_seconds_N: Floats, age_s_N: Floats, memory_s: float, capacity: float) -> float:
    """The dearest job to which those that ask for less leave room."""
    asked, dearest = 0.0, 0.0
    for index in range(gpu_seconds_N.shape[0]):
        if asked > capacity:
            return dearest
        asked += gpu_seconds_N[index] * math.exp(-age_s_N[index] / memory_s)
        dearest = gpu_seconds_N[index]
    return math.inf if asked <= capacity else dearest
