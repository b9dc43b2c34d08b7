"""A schedule made with hindsight, every resize paid: what is reachable below the clairvoyant bound.

The gap between the bound and an online scheduler has two parts: the gain of knowing the future (from the scheduler to
this schedule), and what no known schedule reaches (from here to the bound). Found by search: jobs are fitted one at a
time at the bound's prices; then a few at a time are taken out and others tried in their place. In a pool of several GPU
types each job has GPUs of one type, as in the promises of the services; the bound also divides a job over types.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.compiled_loops import compiled
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.simulator.bound.clairvoyant_bound import Bound, PriceProfile, clairvoyant_bound
from elasticflow.simulator.bound.feasible_demand import FloatArray, IntArray, feasible_alone
from elasticflow.simulator.verification.certificates import Held
from elasticflow.simulator.workload.workload import TraceJob, Workload

# --- cheapest schedule ---------------------------------------------------------------------------------
# The cheapest schedule of one job in the GPUs that others leave, each resize paid: compiled.
#
# A job that begins to hold n GPUs, from another number or from none, stops for the stop of n and pays for them
# meanwhile. Free GPUs and their price are step functions; the job may change its GPUs where these change, and end
# anywhere. Axes: P pieces of time, P + 1 instants, L levels, M the most segments of a schedule.

MAX_SEGMENTS = 24
_DOUBLINGS, _HALVINGS = 60, 14
_SPARE = 1e-9  # more work than needed, relative: a schedule keeps its deadline in exact arithmetic too


class PricedPieces(NamedTuple):
    """Free GPUs and their price between P + 1 instants."""

    instants_s: FloatArray
    free_P: FloatArray
    price_P: FloatArray


class JobLevels(NamedTuple):
    """Numbers of GPUs, iterations per second, and stops in seconds, of a job's levels on one type."""

    num_gpus_L: FloatArray
    rate_L: FloatArray
    stop_s_L: FloatArray


@compiled
def cheapest_schedule(
    pieces: PricedPieces, levels: JobLevels, iterations: float, held: FloatArray
) -> tuple[int, float]:  # pragma: no cover (compiled)
    """Segments and cost of a schedule of `iterations`; no segments and inf if none was found.

    held, shape (M, 3): filled with start, end and GPUs of each segment. Lagrangian: the value of one iteration is
    raised until the most profitable schedule does enough; its surplus is then cut off where it costs most.
    """
    level_P = np.zeros(len(pieces.free_P), np.int64)
    needed = iterations * (1.0 + _SPARE)
    low, high = 0.0, 1e-6
    for _ in range(_DOUBLINGS):
        if _most_profitable(pieces, levels, high, level_P) >= needed:
            break
        low, high = high, high * 4.0
    else:
        return 0, np.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _most_profitable(pieces, levels, middle, level_P) >= needed:
            high = middle
        else:
            low = middle
    done = _most_profitable(pieces, levels, high, level_P)
    starts_s, ends_s = pieces.instants_s[:-1].copy(), pieces.instants_s[1:].copy()
    _cut(starts_s, ends_s, pieces.price_P, levels, level_P, done - needed)
    return _gather(starts_s, ends_s, pieces.price_P, levels.num_gpus_L, level_P, held)


@compiled
def _most_profitable(
    pieces: PricedPieces, levels: JobLevels, value: float, level_P: IntArray
) -> float:  # pragma: no cover (compiled)
    """Iterations of the schedule that gains most at this value of one; level_P: its levels, 0 = none, from 1.

    Dynamic program over pieces; gain[level] is the greatest gain so far of a schedule that ends with this level.
    """
    instants_s, free_P, price_P = pieces
    num_gpus_L, rate_L, stop_s_L = levels
    num_pieces, num_levels = len(free_P), len(num_gpus_L)
    gain = np.full(num_levels + 1, -np.inf)
    gain[0] = 0.0
    came_from = np.zeros((num_pieces, num_levels + 1), np.int64)
    for piece in range(num_pieces):
        length_s = instants_s[piece + 1] - instants_s[piece]
        source = int(np.argmax(gain))
        most = gain[source]
        gain[0] = most
        came_from[piece, 0] = source
        for level in range(1, num_levels + 1):
            num_gpus, rate = num_gpus_L[level - 1], rate_L[level - 1]
            if num_gpus > free_P[piece]:
                gain[level] = -np.inf
                continue
            anew = most - value * rate * stop_s_L[level - 1]
            came_from[piece, level] = level if gain[level] >= anew else source
            gain[level] = max(gain[level], anew) + length_s * (value * rate - price_P[piece] * num_gpus)
    level, done = int(np.argmax(gain)), 0.0
    for piece in range(num_pieces - 1, -1, -1):
        level_P[piece] = level
        before = came_from[piece, level]
        if level > 0:
            done += rate_L[level - 1] * (instants_s[piece + 1] - instants_s[piece])
            if before != level:
                done -= rate_L[level - 1] * stop_s_L[level - 1]
        level = before
    return done


@compiled
def _cut(
    starts_s: FloatArray,
    ends_s: FloatArray,
    price_P: FloatArray,
    levels: JobLevels,
    level_P: IntArray,
    surplus: float,
) -> None:  # pragma: no cover (compiled)
    """Cuts `surplus` iterations off the ends of segments, the costliest first; ties: a later end first."""
    num_gpus_L, rate_L, stop_s_L = levels
    while surplus > 0.0:
        highest, cut_piece, at_end = 0.0, -1, False
        for piece in range(len(level_P)):
            level = level_P[piece]
            if level == 0:
                continue
            unit_cost = price_P[piece] * num_gpus_L[level - 1] / rate_L[level - 1]
            last = piece + 1 == len(level_P) or level_P[piece + 1] != level
            first = piece == 0 or level_P[piece - 1] != level
            if (last and unit_cost >= highest) or (first and unit_cost > highest):
                highest, cut_piece, at_end = unit_cost, piece, last
        if cut_piece < 0:
            return
        level = level_P[cut_piece]
        rate, stop_s = float(rate_L[level - 1]), float(stop_s_L[level - 1])
        productive_s = _productive_s(cut_piece, at_end, starts_s, ends_s, level_P, stop_s)
        piece_s = float(ends_s[cut_piece] - starts_s[cut_piece])
        cut_s = min(surplus / rate, piece_s)
        if productive_s <= cut_s:  # remove the whole segment: the rest of it would only be the stop
            surplus -= productive_s * rate
            _drop(cut_piece, at_end, starts_s, ends_s, level_P)
        elif cut_s >= piece_s:
            surplus -= cut_s * rate
            level_P[cut_piece] = 0
        else:
            surplus = 0.0
            if at_end:
                ends_s[cut_piece] -= cut_s
            else:
                starts_s[cut_piece] += cut_s


@compiled
def _productive_s(
    piece: int, at_end: bool, starts_s: FloatArray, ends_s: FloatArray, level_P: IntArray, stop_s: float
) -> float:  # pragma: no cover (compiled)
    """Seconds of progress of the segment that ends, or begins, with this piece."""
    step = -1 if at_end else 1
    other = piece
    while 0 <= other + step < len(level_P) and level_P[other + step] == level_P[piece]:
        other += step
    return max(ends_s[max(piece, other)] - starts_s[min(piece, other)] - stop_s, 0.0)


@compiled
def _drop(
    piece: int, at_end: bool, starts_s: FloatArray, ends_s: FloatArray, level_P: IntArray
) -> None:  # pragma: no cover (compiled)
    level, step = level_P[piece], -1 if at_end else 1
    while 0 <= piece < len(level_P) and level_P[piece] == level:
        level_P[piece] = 0
        piece += step


@compiled
def _gather(
    starts_s: FloatArray,
    ends_s: FloatArray,
    price_P: FloatArray,
    num_gpus_L: FloatArray,
    level_P: IntArray,
    held: FloatArray,
) -> tuple[int, float]:  # pragma: no cover (compiled)
    """Joins successive pieces of one level into segments."""
    segments, cost = 0, 0.0
    for piece in range(len(level_P)):
        if level_P[piece] == 0:
            continue
        num_gpus = num_gpus_L[level_P[piece] - 1]
        cost += price_P[piece] * num_gpus * (ends_s[piece] - starts_s[piece])
        if segments and held[segments - 1, 1] == starts_s[piece] and held[segments - 1, 2] == num_gpus:
            held[segments - 1, 1] = ends_s[piece]
        elif segments == MAX_SEGMENTS:
            return 0, np.inf
        else:
            held[segments, 0], held[segments, 1], held[segments, 2] = starts_s[piece], ends_s[piece], num_gpus
            segments += 1
    return segments, cost


# --- timetable -----------------------------------------------------------------------------------------
# The schedules of all jobs, each on one GPU type: the state of the search for a schedule with hindsight.
#
# Axes: G GPU types of the pool, J jobs, L levels of one job, M the most segments of a schedule, P pieces of time, B
# starts of a price.

_BASE_PRICE = 0.2  # of the mean price, for free GPUs: they are used sparingly, too


class TimetableEntry(NamedTuple):
    """A job's place in the timetable. held: start, end and GPUs of each segment; none: the job is missing."""

    gpu_type: int
    held: FloatArray
    cost: float


class _Segments(NamedTuple):
    """Start, end and GPUs of each job's segments; num_J: how many segments it has."""

    held_JM3: FloatArray
    num_J: IntArray


class _PriceSteps(NamedTuple):
    """The price of a GPU-second of one type from each start on."""

    starts_s_B: FloatArray
    price_B: FloatArray


class Timetable:
    """Changes in place."""

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
        self._segments = _Segments(np.zeros((len(jobs), MAX_SEGMENTS, 3)), np.zeros(len(jobs), np.int64))
        self._cost_J = np.zeros(len(jobs))
        opens_s, closes_s = self._windows_s[:, 0], self._windows_s[:, 1]
        self.neighbours = [
            np.setdiff1d(np.flatnonzero((opens_s < close_s) & (closes_s > open_s)), [job])
            for job, (open_s, close_s) in enumerate(self._windows_s)
        ]

    @property
    def is_met_J(self) -> np.ndarray:
        return self._segments.num_J > 0

    @property
    def num_met(self) -> int:
        return int(np.count_nonzero(self._segments.num_J))

    @property
    def total_cost(self) -> float:
        return float(self._cost_J.sum())

    def met(self) -> list[int]:
        return np.flatnonzero(self.is_met_J).tolist()

    def missing(self) -> IntArray:
        return np.flatnonzero(~self.is_met_J)

    def schedule(self, job: int) -> tuple[Held, ...]:
        return tuple(Held(start_s, end_s, int(num_gpus)) for start_s, end_s, num_gpus in self._held(job).tolist())

    def gpu_type(self, job: int) -> str:
        """Its name; of a job that is met."""
        return self._gpu_types_G[self._type_J[job]]

    def insert(self, job: int) -> float:
        """Fits the job into the free GPUs of one type, at the least cost. Returns the cost; inf if it fits on none."""
        cheapest = min((self._fitted(job, gpu_type) for gpu_type in self._levels[job]), key=lambda entry: entry.cost)
        self.restore(job, cheapest)
        return cheapest.cost

    def remove(self, job: int) -> None:
        self._segments.num_J[job] = 0
        self._cost_J[job] = 0.0

    def take(self, job: int) -> TimetableEntry:
        """Removes the job. Returns what `restore` needs."""
        taken = TimetableEntry(int(self._type_J[job]), self._held(job).copy(), float(self._cost_J[job]))
        self.remove(job)
        return taken

    def restore(self, job: int, entry: TimetableEntry) -> None:
        self._type_J[job] = entry.gpu_type
        self._segments.held_JM3[job, : len(entry.held)] = entry.held
        self._segments.num_J[job] = len(entry.held)
        self._cost_J[job] = entry.cost if len(entry.held) else 0.0

    def _held(self, job: int) -> FloatArray:
        """Its segments, not copied."""
        return self._segments.held_JM3[job, : self._segments.num_J[job]]

    def _fitted(self, job: int, gpu_type: int) -> TimetableEntry:
        """The cheapest schedule on GPUs of this type; its cost is inf if there is none."""
        opens_s, closes_s = self._windows_s[job]
        neighbours = self.neighbours[job]
        beside, prices = neighbours[self._type_J[neighbours] == gpu_type], self._price_steps_G[gpu_type]
        pieces = _pieces(opens_s, closes_s, self._num_gpus_G[gpu_type], beside, self._segments, prices)
        held = np.empty((MAX_SEGMENTS, 3))
        iterations = float(self._jobs[job].num_iterations)
        segments, cost = cheapest_schedule(pieces, self._levels[job][gpu_type], iterations, held)
        return TimetableEntry(gpu_type, held[:segments], cost)


def _levels_by_type(job: TraceJob, num_gpus_by_type: Mapping[str, int], cost: ResizeCost) -> dict[int, JobLevels]:
    """The levels of each type on which the job runs, by the position of the type."""
    by_type = dict[int, JobLevels]()
    for gpu_type, (name, num_gpus) in enumerate(num_gpus_by_type.items()):
        curve = job.curve_on(name)
        table = [(n, curve.throughput(n), cost.seconds(n)) for n in curve.levels if n <= num_gpus] if curve else []
        if table:
            by_type[gpu_type] = JobLevels(*np.array(table, np.float64).T.copy())
    return by_type


def _with_base(prices_G: Sequence[PriceProfile]) -> list[_PriceSteps]:
    """The price profiles of each type, with a small price everywhere, equal on all types."""
    base = _BASE_PRICE * sum(map(_mean, prices_G)) / len(prices_G) or 1.0
    return [
        _PriceSteps(np.array([-np.inf, *prices.starts_s_B]), np.array([0.0, *prices.price_per_gpu_s_B]) + base)
        for prices in prices_G
    ]


def _mean(prices: PriceProfile) -> float:
    """The mean price from the first start to the last."""
    lengths_s = np.array([end_s - start_s for start_s, end_s in pairwise(prices.starts_s_B)])
    return float(np.array(prices.price_per_gpu_s_B[:-1]) @ lengths_s) / lengths_s.sum() if len(lengths_s) else 0.0


@compiled
def _pieces(
    opens_s: float,
    closes_s: float,
    num_gpus: int,
    neighbours: IntArray,
    segments: _Segments,
    prices: _PriceSteps,
) -> PricedPieces:  # pragma: no cover (compiled)
    """Free GPUs beside these neighbours, and prices, over one window."""
    held_JM3, num_held_J = segments
    price_starts_s, price_B = prices
    first = np.searchsorted(price_starts_s, opens_s, side="right") - 1
    last = np.searchsorted(price_starts_s, closes_s, side="left")
    most = 2 * num_held_J[neighbours].sum() + last - first + 1
    at_s, change, price = np.empty(most), np.zeros(most), np.full(most, -1.0)
    count = 0
    for segment in range(first, last):
        at_s[count] = max(price_starts_s[segment], opens_s)
        price[count] = price_B[segment]
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
    pieces, free, current = 0, float(num_gpus), price_B[first]
    for event in order:
        free += change[event]
        current = price[event] if price[event] >= 0.0 else current
        if pieces and instants_s[pieces - 1] == at_s[event]:
            pieces -= 1
        instants_s[pieces], free_P[pieces], price_P[pieces] = at_s[event], free, current
        pieces += 1
    instants_s[pieces] = closes_s
    return PricedPieces(instants_s[: pieces + 1], free_P[:pieces], price_P[:pieces])


# --- hindsight schedule --------------------------------------------------------------------------------

_MAX_TAKEN_OUT, _MAX_TRIED = 4, 12  # jobs in one move


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """Jobs that meet their deadlines together, by id: their schedules, and the GPU type of each."""

    schedules: dict[str, tuple[Held, ...]]
    gpu_types: dict[str, str]

    @property
    def met(self) -> int:
        return len(self.schedules)

    @property
    def gpu_hours(self) -> float:
        held = (segment for schedule in self.schedules.values() for segment in schedule)
        return sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in held) / 3600


def hindsight_schedule(
    workload: Workload,
    num_gpus_by_type: Mapping[str, int],
    cost: ResizeCost,
    seed: int = 0,
    moves: int = 20_000,
    bound: Bound | None = None,
) -> Hindsight:
    """The best schedule found in `moves` moves, or one that reaches the bound.

    num_gpus_by_type: of the pool; the type is "" if all GPUs are equal. bound: the clairvoyant bound, if known already.
    """
    bound = bound or clairvoyant_bound(workload, num_gpus_by_type, cost)
    alone = frozenset(feasible_alone(workload, num_gpus_by_type, cost))
    jobs = [job for job in workload.jobs if job.job_id in alone]
    timetable = Timetable(jobs, num_gpus_by_type, cost, bound.prices)
    chance = np.random.default_rng(seed)
    cheapest_first = sorted(range(len(jobs)), key=lambda job: (timetable.insert(job), timetable.remove(job))[0])
    for job in cheapest_first:
        timetable.insert(job)
    for _ in range(moves):
        missing = timetable.missing()
        if not len(missing) or timetable.num_met >= bound.whole_jobs_met:
            break
        _move(timetable, int(chance.choice(missing)), chance)
    met = timetable.met()
    return Hindsight(
        schedules={jobs[job].job_id: timetable.schedule(job) for job in met},
        gpu_types={jobs[job].job_id: timetable.gpu_type(job) for job in met},
    )


def _move(timetable: Timetable, added: int, chance: np.random.Generator) -> None:
    """Takes some jobs out, inserts `added`, then these and other missing ones; undone if nothing is gained."""
    neighbours = timetable.neighbours[added]
    is_met = timetable.is_met_J[neighbours]
    taken_out = _some(neighbours[is_met], int(chance.integers(_MAX_TAKEN_OUT + 1)), chance)
    others = np.concatenate([taken_out, _some(neighbours[~is_met], _MAX_TRIED, chance)])
    before_met, before_cost = timetable.num_met, timetable.total_cost
    kept = [(job, timetable.take(job)) for job in taken_out.tolist()]
    inserted = [job for job in [added, *chance.permutation(others).tolist()] if timetable.insert(job) < math.inf]
    gained = timetable.num_met - before_met
    if gained < 0 or (gained == 0 and timetable.total_cost >= before_cost):
        for job in inserted:
            timetable.remove(job)
        for job, entry in kept:
            timetable.restore(job, entry)


def _some(jobs: IntArray, at_most: int, chance: np.random.Generator) -> IntArray:
    return chance.choice(jobs, min(at_most, len(jobs)), replace=False) if len(jobs) and at_most > 0 else jobs[:0]
