"""What jobs must pay at least for their GPU-seconds, when each second has a price: no schedule does it for less.

If that is more than all GPUs earn at these prices, no schedule does what they ask for (weak duality).
Axes: J = jobs; U = uses, one for every level of a job as the fastest that it ever uses; H = edges of the lower
convex hull of (throughput, GPUs) up to that level; K = priced intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shared.scheduling.progressive_filling import SchedulableJob
from shared.scheduling.resize_cost import ResizeCost
from shared.scheduling.scaling_curve import ScalingCurve

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A job whose fastest level is `num_gpus`: what it may hold besides, and what speed costs it at least.

    levels: with the stop before each; edges: GPUs for one more iteration/s, and how many iterations/s, by rising
    price.
    """

    num_gpus: int
    stop_s: float
    levels: tuple[tuple[int, float], ...]
    edges: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demands:
    """What jobs ask for from now on, as arrays; times are seconds from now.

    job_U: which job, ascending; left_U: iterations; until_U: its deadline; ready_U: when it can make progress at the
    earliest; stop_U: GPU-seconds of the stop before its fastest level; slope_UH, speed_UH: its edges.
    """

    num_gpus: int
    now_s: float
    job_U: NDArray[np.intp]
    left_U: Floats
    until_U: Floats
    ready_U: Floats
    stop_U: Floats
    slope_UH: Floats
    speed_UH: Floats

    @property
    def free_of_stops(self) -> NDArray[np.bool_]:
        """Mask over U: the last use of each job, which may use all levels."""
        return np.diff(self.job_U, append=-1) != 0

    def least_payment(self, starts_s_K: Floats, ends_s_K: Floats, price_K: Floats) -> float:
        """Of all jobs together; disjoint intervals, where all other time is free. inf: they cannot be on time.

        Work is bought where it is cheapest; the stop costs something only if no time before the deadline is free.
        """
        until_U1, ready_U1 = self.until_U[:, None], self.ready_U[:, None]
        start_K, end_UK = starts_s_K - self.now_s, np.minimum(ends_s_K - self.now_s, until_U1)
        has_UK = end_UK > start_K
        works_UK = np.clip(end_UK - np.maximum(start_K, ready_U1), 0.0, None)
        free_U = np.clip(self.until_U - self.ready_U - works_UK.sum(1), 0.0, None)
        all_priced_U = np.where(has_UK, end_UK - start_K, 0.0).sum(1) >= self.until_U
        lowest_U = np.where(has_UK, price_K, np.inf).min(1, initial=np.inf)
        stop_price_U = np.where(all_priced_U & has_UK.any(1), lowest_U, 0.0)
        time_UI = np.column_stack((free_U, works_UK))
        price_UP = (np.append(0.0, price_K)[:, None] * self.slope_UH[:, None, :]).reshape(len(time_UI), -1)
        most_UP = (time_UI[:, :, None] * self.speed_UH[:, None, :]).reshape(len(time_UI), -1)
        order = np.argsort(price_UP, axis=1, kind="stable")
        price_UP, most_UP = np.take_along_axis(price_UP, order, 1), np.take_along_axis(most_UP, order, 1)
        before_UP = np.cumsum(most_UP, axis=1) - most_UP
        done_UP = np.clip(self.left_U[:, None] - before_UP, 0.0, most_UP)
        unable_U = most_UP.sum(1) < self.left_U * (1 - 1e-9)
        pays_U = (price_UP * done_UP).sum(1) + stop_price_U * self.stop_U
        pays_U = np.where(unable_U, np.inf, pays_U)
        return float(np.minimum.reduceat(pays_U, np.flatnonzero(np.diff(self.job_U, prepend=-1))).sum())

    def needed_before(self, until_K: Floats) -> Floats:
        """GPU-seconds that all jobs must hold before each instant (seconds from now), stops aside: a quick bound."""
        top = self.free_of_stops
        left_J, due_J1, ready_J1 = self.left_U[top], self.until_U[top][:, None], self.ready_U[top][:, None]
        inside_JK = np.clip(np.minimum(until_K, due_J1) - ready_J1, 0.0, None)
        outside_JK = np.clip(due_J1 - np.maximum(until_K, ready_J1), 0.0, None)
        slope_JH, speed_JH = self.slope_UH[top], self.speed_UH[top]
        left_JK = np.clip(left_J[:, None] - speed_JH.sum(1)[:, None] * outside_JK, 0.0, None)
        needed_K = np.zeros_like(until_K)
        for slope_J, speed_J in zip(slope_JH.T, speed_JH.T, strict=True):
            done_JK = np.minimum(left_JK, speed_J[:, None] * inside_JK)
            needed_K += slope_J @ done_JK
            left_JK = left_JK - done_JK
        return needed_K


def demands(jobs: Sequence[SchedulableJob], num_gpus: int, now_s: float, resize_cost: ResizeCost) -> Demands:
    """What these jobs, each with a deadline, ask of `num_gpus` GPUs from now on."""
    uses = [
        (number, job, use)
        for number, job in enumerate(jobs)
        for use in uses_of(job.curve, num_gpus, resize_cost) or (_NOWHERE,)
    ]
    width = max(len(use.edges) for _, _, use in uses)
    edges_UH2 = np.array([(*use.edges, *((0.0, 0.0),) * (width - len(use.edges))) for _, _, use in uses])
    return Demands(
        num_gpus=num_gpus,
        now_s=now_s,
        job_U=np.array([number for number, _, _ in uses]),
        left_U=np.array([job.remaining_iterations for _, job, _ in uses]),
        until_U=np.array([job.deadline_s - now_s for _, job, _ in uses]),
        ready_U=np.array([_wait_s(job, use, now_s) for _, job, use in uses]),
        stop_U=np.array(
            [
                0.0 if use.num_gpus == job.current_num_gpus else use.num_gpus * use.stop_s
                for _, job, use in uses
            ]
        ),
        slope_UH=edges_UH2[:, :, 0],
        speed_UH=edges_UH2[:, :, 1],
    )


def alone_s(job: SchedulableJob, num_gpus: int, now_s: float, resize_cost: ResizeCost) -> float:
    """How long it takes at least with `num_gpus` GPUs to itself; inf if it runs on no level that small.

    The fastest level that it uses costs its stop, unless it is held: going through another first is no short cut.
    """
    return min(
        (
            _level_wait_s(job, n, resize_cost.seconds(n), now_s) + job.remaining_iterations / rate
            for n, rate in job.curve.rate_by_num_gpus.items()
            if n <= num_gpus and rate > 0
        ),
        default=np.inf,
    )


@lru_cache(maxsize=1 << 12)
def uses_of(curve: ScalingCurve, num_gpus: int, resize_cost: ResizeCost) -> tuple[Use, ...]:
    """One for each level of `curve` that exists, by rising throughput."""
    rates = curve.rate_by_num_gpus
    levels = sorted(
        (n for n, rate in rates.items() if n <= num_gpus and rate > 0), key=lambda n: (rates[n], n)
    )
    uses: list[Use] = []
    for fastest in levels:
        slower = tuple(n for n in levels if rates[n] <= rates[fastest])
        uses.append(
            Use(
                num_gpus=fastest,
                stop_s=resize_cost.seconds(fastest),
                levels=tuple((n, resize_cost.seconds(n)) for n in slower),
                edges=_hull_edges([(rates[n], n) for n in slower]),
            )
        )
    return tuple(uses)


def _hull_edges(points: Sequence[tuple[float, int]]) -> tuple[tuple[float, float], ...]:
    """Of the lower convex hull from (0, 0) through points by rising throughput: (slope, width)."""
    hull: list[tuple[float, int]] = [(0.0, 0)]
    for point in sorted(points):
        if point[0] == hull[-1][0]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return tuple((_slope(low, high), high[0] - low[0]) for low, high in pairwise(hull))


def _slope(low: tuple[float, int], high: tuple[float, int]) -> float:
    return (high[1] - low[1]) / (high[0] - low[0])


def _wait_s(job: SchedulableJob, use: Use, now_s: float) -> float:
    """How long it takes at least until it makes progress."""
    return min((_level_wait_s(job, n, stop_s, now_s) for n, stop_s in use.levels), default=0.0)


def _level_wait_s(job: SchedulableJob, num_gpus: int, stop_s: float, now_s: float) -> float:
    stalled_s = max(job.stalled_until_s - now_s, 0.0)
    return min(stop_s, stalled_s) if num_gpus == job.current_num_gpus else stop_s


_NOWHERE = Use(num_gpus=0, stop_s=0.0, levels=(), edges=())
