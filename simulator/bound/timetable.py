"""The schedules of all jobs, each on one GPU type: the state of the search for a schedule with hindsight.

Axes: G GPU types of the pool, J jobs, L levels of one job, M the most segments of a schedule, P pieces of time, B
starts of a price.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import compiled
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.bound.cheapest_schedule import MAX_SEGMENTS, cheapest_schedule
from elasticflow.simulator.bound.clairvoyant_bound import PriceProfile
from elasticflow.simulator.bound.feasible_demand import FloatArray, IntArray
from elasticflow.simulator.verification.certificates import Held
from elasticflow.simulator.workload.workload import TraceJob

_BASE_PRICE = 0.2  # of the mean price, for free GPUs: they are used sparingly, too


class Entry(NamedTuple):
    """A job's place in the timetable. held: start, end and GPUs of each segment; none: the job is missing."""

    gpu_type: int
    held: FloatArray
    cost: float


class _Levels(NamedTuple):
    """Numbers of GPUs, iterations per second, and stops in seconds, of a job's levels on one type."""

    num_gpus_L: FloatArray
    rate_L: FloatArray
    stop_s_L: FloatArray


class Timetable:
    """Changes in place.

    held_JM3: start, end and GPUs of each job's segments; num_held_J: how many segments it has.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        num_gpus_by_type: Mapping[str, int],
        cost: ResizeCost,
        prices: Mapping[str, PriceProfile],
    ) -> None:
        self._jobs = jobs
        self._gpu_types_G, self._num_gpus_G = tuple(num_gpus_by_type), tuple(num_gpus_by_type.values())
        self._windows_s = np.array([(job.submitted_at_s, job.deadline_s) for job in jobs], np.float64).reshape(-1, 2)
        self._levels = [_levels_by_type(job, num_gpus_by_type, cost) for job in jobs]
        self._price_steps_G = _with_base([prices[name] for name in num_gpus_by_type])
        self._type_J = np.zeros(len(jobs), np.int64)
        self._held_JM3 = np.zeros((len(jobs), MAX_SEGMENTS, 3))
        self._num_held_J = np.zeros(len(jobs), np.int64)
        self._cost_J = np.zeros(len(jobs))
        opens_s, closes_s = self._windows_s[:, 0], self._windows_s[:, 1]
        self.neighbours = [
            np.setdiff1d(np.flatnonzero((opens_s < close_s) & (closes_s > open_s)), [job])
            for job, (open_s, close_s) in enumerate(self._windows_s)
        ]

    @property
    def is_met_J(self) -> np.ndarray:
        return self._num_held_J > 0

    @property
    def num_met(self) -> int:
        return int(np.count_nonzero(self._num_held_J))

    @property
    def total_cost(self) -> float:
        return float(self._cost_J.sum())

    def met(self) -> list[int]:
        return np.flatnonzero(self.is_met_J).tolist()

    def missing(self) -> IntArray:
        return np.flatnonzero(~self.is_met_J)

    def schedule(self, job: int) -> tuple[Held, ...]:
        segments = self._held_JM3[job, : self._num_held_J[job]].tolist()
        return tuple(Held(start_s, end_s, int(num_gpus)) for start_s, end_s, num_gpus in segments)

    def gpu_type(self, job: int) -> str:
        """Its name; of a job that is met."""
        return self._gpu_types_G[self._type_J[job]]

    def insert(self, job: int) -> float:
        """Fits the job into the free GPUs of one type, at the least cost. Returns the cost; inf if it fits on none."""
        cheapest = min((self._fitted(job, gpu_type) for gpu_type in self._levels[job]), key=lambda entry: entry.cost)
        self.restore(job, cheapest)
        return cheapest.cost

    def remove(self, job: int) -> None:
        self._num_held_J[job] = 0
        self._cost_J[job] = 0.0

    def take(self, job: int) -> Entry:
        """Removes the job. Returns what `restore` needs."""
        held = self._held_JM3[job, : self._num_held_J[job]].copy()
        taken = Entry(int(self._type_J[job]), held, float(self._cost_J[job]))
        self.remove(job)
        return taken

    def restore(self, job: int, entry: Entry) -> None:
        self._type_J[job] = entry.gpu_type
        self._held_JM3[job, : len(entry.held)] = entry.held
        self._num_held_J[job] = len(entry.held)
        self._cost_J[job] = entry.cost if len(entry.held) else 0.0

    def _fitted(self, job: int, gpu_type: int) -> Entry:
        """The cheapest schedule on GPUs of this type; its cost is inf if there is none."""
        opens_s, closes_s = self._windows_s[job]
        neighbours = self.neighbours[job]
        instants_s, free_P, price_P = _pieces(
            opens_s, closes_s, self._num_gpus_G[gpu_type], neighbours[self._type_J[neighbours] == gpu_type],
            self._held_JM3, self._num_held_J, *self._price_steps_G[gpu_type],
        )  # fmt: skip
        held = np.empty((MAX_SEGMENTS, 3))
        iterations = float(self._jobs[job].num_iterations)
        segments, cost = cheapest_schedule(instants_s, free_P, price_P, iterations, *self._levels[job][gpu_type], held)
        return Entry(gpu_type, held[:segments], cost)


def _levels_by_type(job: TraceJob, num_gpus_by_type: Mapping[str, int], cost: ResizeCost) -> dict[int, _Levels]:
    """Of each type on which the job runs, by its position."""
    by_type = dict[int, _Levels]()
    for gpu_type, (name, num_gpus) in enumerate(num_gpus_by_type.items()):
        curve = job.curve_on(name)
        table = [(n, curve.throughput(n), cost.seconds(n)) for n in curve.levels if n <= num_gpus] if curve else []
        if table:
            by_type[gpu_type] = _Levels(*np.array(table, np.float64).T.copy())
    return by_type


def _with_base(prices_G: Sequence[PriceProfile]) -> list[tuple[FloatArray, FloatArray]]:
    """The price profiles, with a small price everywhere, equal on all types: starts_s_B and price_B of each type."""
    base = _BASE_PRICE * sum(map(_mean, prices_G)) / len(prices_G) or 1.0
    return [
        (np.array([-np.inf, *prices.starts_s_B]), np.array([0.0, *prices.price_per_gpu_s_B]) + base)
        for prices in prices_G
    ]


def _mean(prices: PriceProfile) -> float:
    """From the first start to the last."""
    lengths_s = np.array([end_s - start_s for start_s, end_s in pairwise(prices.starts_s_B)])
    return float(np.array(prices.price_per_gpu_s_B[:-1]) @ lengths_s) / lengths_s.sum() if len(lengths_s) else 0.0


@compiled
def _pieces(
    opens_s: float,
    closes_s: float,
    num_gpus: int,
    neighbours: IntArray,
    held_JM3: FloatArray,
    num_held_J: IntArray,
    price_starts_s: FloatArray,
    prices: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:  # pragma: no cover (compiled)
    """Instants, free GPUs and prices between them, over one window."""
    first = np.searchsorted(price_starts_s, opens_s, side="right") - 1
    last = np.searchsorted(price_starts_s, closes_s, side="left")
    most = 2 * num_held_J[neighbours].sum() + last - first + 1
    at_s, change, price = np.empty(most), np.zeros(most), np.full(most, -1.0)
    count = 0
    for segment in range(first, last):
        at_s[count] = max(price_starts_s[segment], opens_s)
        price[count] = prices[segment]
        count += 1
    for job in neighbours:
        for segment in range(num_held_J[job]):
            start_s, end_s = held_JM3[job, segment, 0], held_JM3[job, segment, 1]
            if start_s < closes_s and end_s > opens_s:
                at_s[count], change[count] = max(start_s, opens_s), -held_JM3[job, segment, 2]
                count += 1
                if end_s < closes_s:
                    at_s[count], change[count] = end_s, held_JM3[job, segment, 2]
                    count += 1
    order = np.argsort(at_s[:count])
    instants_s, free_P, price_P = np.empty(count + 1), np.empty(count), np.empty(count)
    pieces, free, current = 0, float(num_gpus), prices[first]
    for event in order:
        free += change[event]
        current = price[event] if price[event] >= 0.0 else current
        if pieces and instants_s[pieces - 1] == at_s[event]:
            pieces -= 1
        instants_s[pieces], free_P[pieces], price_P[pieces] = at_s[event], free, current
        pieces += 1
    instants_s[pieces] = closes_s
    return instants_s[: pieces + 1], free_P[:pieces], price_P[:pieces]
