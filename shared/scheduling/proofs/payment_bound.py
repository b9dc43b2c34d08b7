"""Payment bound: the least that jobs pay for their GPU-seconds at given prices. No schedule pays less.

If the jobs must pay more than all GPUs earn at these prices, no schedule exists (weak duality).
Axes: J = jobs; U = uses, one for each level of a job as the fastest that it ever uses, by rising throughput; H = edges
of the lower convex hull of (throughput, GPUs) up to that level; K = intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve, lower_hull, slope
from elasticflow.shared.state.nodes import CapacityDrop

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
UNABLE = 1 - 1e-9  # of its work: less cannot be rounding


class Request(Protocol):
    """The inputs of the bound for one job with a deadline, as the scheduler sees it."""

    @property
    def curve(self) -> ScalingCurve: ...
    @property
    def resize_cost(self) -> ResizeCost: ...
    @property
    def remaining_iterations(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def current_num_gpus(self) -> int: ...
    @property
    def stalled_until_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demands:
    """The demands of jobs from now on, as arrays; times are seconds from now.

    job_U: the job, ascending; left_U: iterations; until_U: its deadline; ready_U: when it can make progress at the
    earliest; takes_U: its shortest duration; stop_U: GPU-seconds of the stop before its fastest level; slope_UH,
    speed_UH: GPUs for one more iteration/s, and how many iterations/s, by rising price. drops: of num_gpus, later.
    """

    num_gpus: int
    now_s: float
    drops: tuple[CapacityDrop, ...]
    job_U: Integers
    left_U: Floats
    until_U: Floats
    ready_U: Floats
    takes_U: Floats
    stop_U: Floats
    slope_UH: Floats
    speed_UH: Floats

    @property
    def takes_J(self) -> Floats:
        """The shortest duration of each job with all GPUs to itself; inf if it runs on no level that small.

        The fastest level that it uses costs its stop, unless the job holds it: passing through another level is no
        shortcut.
        """
        return np.minimum.reduceat(self.takes_U, self._firsts)

    def of(self, uses_U: NDArray[np.bool_]) -> "Demands":
        """These uses only; at least one of a job."""
        return Demands(
            num_gpus=self.num_gpus,
            now_s=self.now_s,
            drops=self.drops,
            job_U=self.job_U[uses_U],
            left_U=self.left_U[uses_U],
            until_U=self.until_U[uses_U],
            ready_U=self.ready_U[uses_U],
            takes_U=self.takes_U[uses_U],
            stop_U=self.stop_U[uses_U],
            slope_UH=self.slope_UH[uses_U],
            speed_UH=self.speed_UH[uses_U],
        )

    def missing(self, starts_s_K: Floats, ends_s_K: Floats) -> Floats:
        """GPU-seconds within each interval of the GPUs that have left by then; times since the epoch."""
        missing_K = np.zeros(len(starts_s_K))
        for at_s, num_gpus in self.drops:
            missing_K += num_gpus * np.clip(ends_s_K - np.maximum(starts_s_K, at_s), 0.0, None)
        return missing_K

    def hopeful(self) -> "Demands":
        """The demands without the jobs that would be late with all GPUs to themselves."""
        late_U = np.isin(self.job_U, self.job_U[self._firsts][self.takes_J > self.until_U[self._firsts]])
        return self.of(~late_U)

    def free_of_stops(self) -> "Demands":
        """One use for each job, with all its levels and without a price for its stop."""
        return self.of(np.diff(self.job_U, append=-1) != 0)

    def needed_before(self, until_K: Floats) -> Floats:
        """GPU-seconds that all jobs must hold before each instant, if each does as much as possible after it. inf:
        they are late.
        """
        due_U1, ready_U1 = self.until_U[:, None], self.ready_U[:, None]
        before_UK = np.clip(np.minimum(until_K, due_U1) - ready_U1, 0.0, None)
        after_UK = np.clip(due_U1 - np.maximum(until_K, ready_U1), 0.0, None)
        left_UK = np.clip(self.left_U[:, None] - self.speed_UH.sum(1)[:, None] * after_UK, 0.0, None)
        pays_UK = np.where(due_U1 <= until_K, self.stop_U[:, None], 0.0)
        for slope_U, speed_U in zip(self.slope_UH.T, self.speed_UH.T, strict=True):
            done_UK = np.minimum(left_UK, speed_U[:, None] * before_UK)
            pays_UK += slope_U[:, None] * done_UK
            left_UK -= done_UK
        pays_UK[left_UK > self.left_U[:, None] * (1 - UNABLE)] = np.inf
        return np.minimum.reduceat(pays_UK, self._firsts, axis=0).sum(0)

    def least_payment(self, starts_s_K: Floats, ends_s_K: Floats, price_K: Floats) -> float:
        """The least payment of all jobs; intervals are disjoint, and all other time is free. inf: they are late.

        Work is bought where it is cheapest; the stop costs only if no time before the deadline is free.
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
        pays_U = (price_UP * done_UP).sum(1) + stop_price_U * self.stop_U
        pays_U[most_UP.sum(1) < self.left_U * UNABLE] = np.inf
        return float(np.minimum.reduceat(pays_U, self._firsts).sum())

    @property
    def _firsts(self) -> NDArray[np.intp]:
        """The first use of each job."""
        return np.flatnonzero(np.diff(self.job_U, prepend=-1))


def demands(
    jobs: Sequence[Request],
    num_gpus: int,
    now_s: float,
    drops: tuple[CapacityDrop, ...] = (),
) -> Demands:
    """The demands of these jobs, at least one, on `num_gpus` GPUs from now on, and fewer from each drop on."""
    number = dict[tuple[ScalingCurve, ResizeCost], int]()
    curve_J = np.array([number.setdefault((job.curve, job.resize_cost), len(number)) for job in jobs])
    tables = [curve.derived(_table, num_gpus, resize_cost) for curve, resize_cost in number]
    width = max(table.slope_UH.shape[1] for table in tables)
    num_uses_C = np.array([len(table.num_gpus_U) for table in tables])
    first_C = np.cumsum(num_uses_C) - num_uses_C
    num_uses_J = num_uses_C[curve_J]
    job_U = np.repeat(np.arange(len(jobs)), num_uses_J)
    within_U = np.arange(len(job_U)) - np.repeat(np.cumsum(num_uses_J) - num_uses_J, num_uses_J)
    row_U = first_C[curve_J][job_U] + within_U

    def stacked(arrays: Sequence[NDArray[np.float64]]) -> Floats:
        return np.concatenate(arrays)[row_U]

    def widened(arrays: Sequence[Floats]) -> Floats:
        wide = np.zeros((int(num_uses_C.sum()), width))
        for first, array in zip(first_C.tolist(), arrays, strict=True):
            wide[first : first + len(array), : array.shape[1]] = array
        return wide[row_U]

    held_J = np.array([float(job.current_num_gpus) for job in jobs])
    held_rate_J = np.array([job.curve.throughput(job.current_num_gpus) or np.inf for job in jobs])
    stalled_J = np.clip(np.array([job.stalled_until_s for job in jobs]) - now_s, 0.0, None)
    left_U = np.array([job.remaining_iterations for job in jobs])[job_U]
    rate_U, stop_s_U = (
        stacked([table.rate_U for table in tables]),
        stacked([table.stop_s_U for table in tables]),
    )
    num_gpus_U = stacked([table.num_gpus_U for table in tables])
    is_held_U = num_gpus_U == held_J[job_U]
    may_stay_U = (held_rate_J[job_U] <= rate_U) & (held_J[job_U] <= num_gpus)
    waits_U = np.where(is_held_U, np.minimum(stop_s_U, stalled_J[job_U]), stop_s_U)
    least_stop_U = stacked([table.least_stop_s_U for table in tables])
    return Demands(
        num_gpus=num_gpus,
        now_s=now_s,
        drops=drops,
        job_U=job_U,
        left_U=left_U,
        until_U=np.array([job.deadline_s - now_s for job in jobs])[job_U],
        ready_U=np.where(may_stay_U, np.minimum(least_stop_U, stalled_J[job_U]), least_stop_U),
        takes_U=waits_U + np.divide(left_U, rate_U, out=np.full_like(rate_U, np.inf), where=rate_U > 0),
        stop_U=np.where(is_held_U, 0.0, num_gpus_U * stop_s_U),
        slope_UH=widened([table.slope_UH for table in tables]),
        speed_UH=widened([table.speed_UH for table in tables]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """The uses of a curve. least_stop_s_U: of its levels; if it runs nowhere, one use without throughput."""

    num_gpus_U: Floats
    rate_U: Floats
    stop_s_U: Floats
    least_stop_s_U: Floats
    slope_UH: Floats
    speed_UH: Floats


def _table(curve: ScalingCurve, num_gpus: int, resize_cost: ResizeCost) -> _Table:
    rates = curve.rate_by_num_gpus
    levels = sorted((rate, n) for n, rate in rates.items() if n <= num_gpus and rate > 0)
    hulls = [_hull_edges(levels[: last + 1]) for last in range(len(levels))] or [()]
    edges_UH2 = np.zeros((len(hulls), max(max(map(len, hulls)), 1), 2))
    for use, edges in enumerate(hulls):
        edges_UH2[use, : len(edges)] = np.array(edges).reshape(-1, 2)
    rate_U, num_gpus_U = np.array(levels or [(0.0, 0)], dtype=np.float64).T
    stop_s_U = np.array([resize_cost.seconds(n) for _, n in levels] or [0.0])
    return _Table(
        num_gpus_U=num_gpus_U,
        rate_U=rate_U,
        stop_s_U=stop_s_U,
        least_stop_s_U=np.minimum.accumulate(stop_s_U),
        slope_UH=edges_UH2[:, :, 0],
        speed_UH=edges_UH2[:, :, 1],
    )


def _hull_edges(levels: Sequence[tuple[float, int]]) -> tuple[tuple[float, float], ...]:
    """(slope, width) of each edge of the lower convex hull of these levels."""
    return tuple((slope(low, high), high[0] - low[0]) for low, high in pairwise(lower_hull(levels)))
