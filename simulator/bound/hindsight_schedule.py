"""A schedule made with hindsight, every resize paid: what is reachable below the clairvoyant bound.

The gap between the bound and an online scheduler has two parts: the gain of knowing the future (from the scheduler to
this schedule), and what no known schedule reaches (from here to the bound). Found by search: jobs are fitted one at a
time at the bound's prices; then a few at a time are taken out and others tried in their place.
Axes: J jobs, L levels of one job, M the most segments of a schedule, P pieces of time.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import compiled
from elasticflow.shared.scheduling.jobs.resize_cost import ResizeCost
from elasticflow.simulator.bound.cheapest_schedule import MAX_SEGMENTS, cheapest_schedule
from elasticflow.simulator.bound.clairvoyant_bound import Bound, PriceProfile, clairvoyant_bound
from elasticflow.simulator.bound.feasible_demand import FloatArray, IntArray, feasible_alone
from elasticflow.simulator.verification.certificates import Held
from elasticflow.simulator.workload.throughput_tables import NO_TYPE
from elasticflow.simulator.workload.workload import TraceJob, Workload

_BASE_PRICE = 0.2  # of the mean price, for free GPUs: they are used sparingly, too
_MAX_TAKEN_OUT, _MAX_TRIED = 4, 12  # jobs in one move


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Jobs that meet their deadlines together, by id, and their schedules."""

    schedules: dict[str, tuple[Held, ...]]

    @property
    def met(self) -> int:
        return len(self.schedules)

    @property
    def gpu_hours(self) -> float:
        held = (segment for schedule in self.schedules.values() for segment in schedule)
        return sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in held) / 3600


def hindsight_schedule(
    workload: Workload,
    num_gpus: int,
    cost: ResizeCost,
    seed: int = 0,
    moves: int = 20_000,
    bound: Bound | None = None,
) -> Hindsight:
    """The best schedule found in `moves` moves, or one that reaches the bound. All GPUs are equal.

    bound: the clairvoyant bound, if known already.
    """
    bound = bound or clairvoyant_bound(workload, {NO_TYPE: num_gpus}, cost)
    alone = frozenset(feasible_alone(workload, {NO_TYPE: num_gpus}, cost))
    jobs = [job for job in workload.jobs if job.job_id in alone]
    timetable = _Timetable(jobs, num_gpus, cost, bound.prices[NO_TYPE])
    chance = np.random.default_rng(seed)
    cheapest_first = sorted(range(len(jobs)), key=lambda job: (timetable.insert(job), timetable.remove(job))[0])
    for job in cheapest_first:
        timetable.insert(job)
    for _ in range(moves):
        missing = timetable.missing()
        if not len(missing) or timetable.num_met >= bound.whole_jobs_met:
            break
        _move(timetable, int(chance.choice(missing)), chance)
    return Hindsight(schedules={jobs[job].job_id: timetable.schedule(job) for job in timetable.met()})


def _move(timetable: "_Timetable", added: int, chance: np.random.Generator) -> None:
    """Takes some jobs out, inserts `added`, then these and other missing ones; undone if nothing is gained."""
    neighbours = timetable.neighbours[added]
    is_met = timetable.is_met_J[neighbours]
    taken_out = _some(neighbours[is_met], int(chance.integers(_MAX_TAKEN_OUT + 1)), chance)
    others = np.concatenate([taken_out, _some(neighbours[~is_met], _MAX_TRIED, chance)])
    before_met, before_cost = timetable.num_met, timetable.total_cost
    kept = [(job, *timetable.take(job)) for job in taken_out.tolist()]
    inserted = [job for job in [added, *chance.permutation(others).tolist()] if timetable.insert(job) < math.inf]
    gained = timetable.num_met - before_met
    if gained < 0 or (gained == 0 and timetable.total_cost >= before_cost):
        for job in inserted:
            timetable.remove(job)
        for job, held, cost in kept:
            timetable.restore(job, held, cost)


def _some(jobs: IntArray, at_most: int, chance: np.random.Generator) -> IntArray:
    return chance.choice(jobs, min(at_most, len(jobs)), replace=False) if len(jobs) and at_most > 0 else jobs[:0]


class _Timetable:
    """The schedules of all jobs: the state of the search.

    held_JM3: start, end and GPUs of each job's segments; num_held_J: how many segments it has.
    """

    def __init__(self, jobs: list[TraceJob], num_gpus: int, cost: ResizeCost, prices: PriceProfile) -> None:
        self._jobs = jobs
        self._num_gpus = num_gpus
        self._windows_s = np.array([(job.submitted_at_s, job.deadline_s) for job in jobs], np.float64).reshape(-1, 2)
        self._levels = [_levels(job, num_gpus, cost) for job in jobs]
        self._price_starts_s, self._prices = _with_base(prices)
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

    def insert(self, job: int) -> float:
        """Fits the job into the free GPUs at the least cost. Returns the cost; inf if the job does not fit."""
        opens_s, closes_s = self._windows_s[job]
        instants_s, free_P, price_P = _pieces(
            opens_s, closes_s, self._num_gpus, self.neighbours[job], self._held_JM3, self._num_held_J,
            self._price_starts_s, self._prices,
        )  # fmt: skip
        segments, cost = cheapest_schedule(
            instants_s,
            free_P,
            price_P,
            float(self._jobs[job].num_iterations),
            *self._levels[job],
            self._held_JM3[job],
        )
        self._num_held_J[job] = segments
        self._cost_J[job] = cost if segments else 0.0
        return cost

    def remove(self, job: int) -> None:
        self._num_held_J[job] = 0
        self._cost_J[job] = 0.0

    def take(self, job: int) -> tuple[FloatArray, float]:
        """Removes the job. Returns the arguments of `restore`."""
        kept = self._held_JM3[job, : self._num_held_J[job]].copy(), float(self._cost_J[job])
        self.remove(job)
        return kept

    def restore(self, job: int, held: FloatArray, cost: float) -> None:
        self._held_JM3[job, : len(held)] = held
        self._num_held_J[job] = len(held)
        self._cost_J[job] = cost


def _levels(job: TraceJob, num_gpus: int, cost: ResizeCost) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Numbers of GPUs, iterations per second, and stops in seconds, of the levels that are worth using."""
    levels = [level for level in job.curve.levels if level <= num_gpus]
    table = [(level, job.curve.throughput(level), cost.seconds(level)) for level in levels]
    num_gpus_L, rate_L, stop_s_L = np.array(table, np.float64).T.copy()
    return num_gpus_L, rate_L, stop_s_L


def _with_base(prices: PriceProfile) -> tuple[FloatArray, FloatArray]:
    """The price profile, with a small price everywhere: starts_s_B and price_B."""
    starts_s = np.array([-np.inf, *prices.starts_s_B])
    price_B = np.array([0.0, *prices.price_per_gpu_s_B])
    lengths_s = np.array([end_s - start_s for start_s, end_s in pairwise(prices.starts_s_B)])
    mean = float(price_B[1:-1] @ lengths_s) / lengths_s.sum() if len(lengths_s) else 0.0
    return starts_s, price_B + (_BASE_PRICE * mean or 1.0)


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
