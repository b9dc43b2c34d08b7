"""The scaling curve: throughput of a job on 1, 2, 4, ... GPUs.

Axis: L = measured levels (numbers of GPUs, powers of two). A curve may fall, need not be concave, and may lack levels:
small ones for memory, large ones for batch size.
Source: ElasticFlow, section 4.1.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.topology import CLUSTER, NODE, Level

MAX_DERIVED = 64  # tables that are kept with one curve

Derived = TypeVar("Derived")


@dataclass(frozen=True)  # not slotted: derived tables are cached properties
class ScalingCurve:
    """Iterations/s at each level, for one job at its global batch size. ValueError: a level or rate is invalid."""

    num_gpus_L: tuple[int, ...]
    iterations_per_s_L: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.num_gpus_L) != len(self.iterations_per_s_L):
            raise ValueError("a scaling curve needs one throughput for each number of GPUs")
        if any(level < 1 or level & (level - 1) for level in self.num_gpus_L):
            raise ValueError(f"levels must be powers of two: {self.num_gpus_L}")
        if any(low >= high for low, high in zip(self.num_gpus_L, self.num_gpus_L[1:], strict=False)):
            raise ValueError(f"levels must increase: {self.num_gpus_L}")
        if any(not math.isfinite(rate) or rate < 0 for rate in self.iterations_per_s_L):
            raise ValueError(f"throughputs must be finite and not negative: {self.iterations_per_s_L}")
        if not any(rate > 0 for rate in self.iterations_per_s_L):
            raise ValueError("a scaling curve needs a level at which the job makes progress")

    def throughput(self, num_gpus: int) -> float:
        """Iterations/s; 0 without GPUs and at a level that was not measured."""
        return self.rate_by_num_gpus.get(num_gpus, 0.0)

    @property
    def max_useful_gpus(self) -> int:
        """The level with the highest throughput."""
        return self.levels[-1]

    def least_gpu_seconds(self, iterations: float, window_s: float) -> float:
        """Lower bound on the GPU-seconds of `iterations` within `window_s`; inf if no level is fast enough.

        Any mix of levels, with free changes, lies on or above the convex hull of (throughput, GPUs), and slower is
        cheaper. The bound is therefore the hull at the slowest rate that is fast enough.
        """
        if math.isinf(window_s):
            rate, num_gpus = self._hull[1]
            return iterations * num_gpus / rate
        if iterations <= 0:
            return 0.0
        needed = iterations / window_s if window_s > 0 else math.inf
        for (low, gpus_low), (high, gpus_high) in zip(self._hull, self._hull[1:], strict=False):
            if needed <= high:
                return window_s * (gpus_low + (gpus_high - gpus_low) * (needed - low) / (high - low))
        return math.inf

    def derived(self, function: Callable[..., Derived], *arguments: Hashable) -> Derived:
        """What a pure function makes of this curve and arguments that seldom change; kept with the curve."""
        key = function, arguments
        if key not in self._derived:
            if len(self._derived) >= MAX_DERIVED:
                self._derived.clear()
            self._derived[key] = function(self, *arguments)
        derived: Derived = self._derived[key]
        return derived

    @cached_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def rate_by_num_gpus(self) -> Mapping[int, float]:
        """Iterations/s by level."""
        return dict(zip(self.num_gpus_L, self.iterations_per_s_L, strict=True))

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """The useful levels, ascending: those of the rising curve."""
        return self._rising.num_gpus_L

    @cached_property
    def next_level(self) -> Mapping[int, int]:
        """The level above each level except the last; above 0 the first."""
        return dict(zip((0, *self.levels), self.levels, strict=False))

    @cached_property
    def _rising(self) -> "ScalingCurve":
        best, kept = 0.0, list[tuple[int, float]]()
        for level, rate in zip(self.num_gpus_L, self.iterations_per_s_L, strict=True):
            if rate > best:
                best = rate
                kept.append((level, rate))
        return ScalingCurve(tuple(level for level, _ in kept), tuple(rate for _, rate in kept))

    @cached_property
    def _hull(self) -> tuple[tuple[float, int], ...]:
        rising = self._rising
        return lower_hull(zip(rising.iterations_per_s_L, rising.num_gpus_L, strict=True))


def lower_hull(points: Iterable[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """The lower convex hull of (throughput, GPUs) from (0, 0), by falling throughput per added GPU.

    points: by throughput, then GPUs.
    """
    hull: list[tuple[float, int]] = [(0.0, 0)]
    for point in points:
        if point[0] == hull[-1][0]:
            continue
        while len(hull) > 1 and slope(hull[-2], hull[-1]) >= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def slope(low: tuple[float, int], high: tuple[float, int]) -> float:
    """GPUs for one more iteration/s between two points."""
    return (high[1] - low[1]) / (high[0] - low[0])


# --- resize cost ---------------------------------------------------------------------------------------
# Resize cost: seconds without progress at a change of GPUs, by the number of GPUs that the job holds afterwards.


@dataclass(frozen=True, slots=True)
class ResizeCost:
    """A job whose set of GPUs changes to n GPUs stops for `seconds(n)`; a job whose set is unchanged pays nothing.

    num_gpus_C: ascending numbers of GPUs at which the cost changes; seconds_C: the cost from there on.
    """

    num_gpus_C: tuple[int, ...] = (1,)
    seconds_C: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        if len(self.num_gpus_C) != len(self.seconds_C) or not self.num_gpus_C:
            raise ValueError("a resize cost needs one number of seconds for each number of GPUs, and one at least")
        if any(low >= high for low, high in zip(self.num_gpus_C, self.num_gpus_C[1:], strict=False)):
            raise ValueError(f"numbers of GPUs must increase: {self.num_gpus_C}")
        if any(not 0 <= cost_s < float("inf") for cost_s in self.seconds_C):
            raise ValueError(f"costs must be finite and not negative: {self.seconds_C}")

    @staticmethod
    def flat(seconds: float) -> "ResizeCost":
        """The same cost for any number of GPUs."""
        return ResizeCost((1,), (seconds,))

    def seconds(self, num_gpus: int) -> float:
        """Seconds of the stop at a change to `num_gpus` GPUs; 0 for no GPUs."""
        if num_gpus < 1:
            return 0.0
        return self.seconds_C[max(bisect_right(self.num_gpus_C, num_gpus) - 1, 0)]


FREE = ResizeCost()


@dataclass(frozen=True, slots=True)
class Disturbances:
    """What may stop a job beside the changes of its schedule.

    Its schedule allows for failures of `reserve_nodes` nodes at once, repeatedly, of which each is noticed after
    `notice_s`; and for migrations, of which each costs `migration_cost`.
    """

    reserve_nodes: int = 0
    notice_s: float = 0.0
    migration_cost: ResizeCost = FREE


# --- placement curves ---------------------------------------------------------------------------------
# Throughput of a job by what connects its GPUs, and what a closer placement is worth.
#
# The table under the plain key of a profile holds for buddy blocks, on which promised jobs always train. A table of a
# known level has that level in its key, "resnet50/b256@cluster". Source: ElasticFlow, sections 3.2 and 4.3, figure
# 2(b).

UNMEASURED_SAVING = 0.1
"""Assumed fraction of its time that a closer placement saves where no table exists. Cautious: figure 2(b) shows more
than half for ResNet50 on one node instead of eight. No promise counts on it.
"""


@dataclass(frozen=True, slots=True)
class PlacementCurves:
    """The scaling curves of one job by level, and that of buddy blocks.

    block_levels: what connects the blocks of 1, 2, 4, ... GPUs at worst; a node, if that is unknown.
    """

    of_blocks: ScalingCurve | None
    by_level: Mapping[Level, ScalingCurve]
    block_levels: tuple[Level, ...] = ()

    def throughput(self, num_gpus: int, level: Level) -> float:
        """Iterations/s on GPUs that `level` connects, never too high; 0 if the job cannot run there.

        Taken from this level, else from the next slower one; from that of blocks if these are connected no better, or
        if no slower level is known.
        """
        of_blocks = self.of_blocks.throughput(num_gpus) if self.of_blocks else 0.0
        for measured_level in sorted(self.by_level):
            if measured_level >= level and (rate := self.by_level[measured_level].throughput(num_gpus)):
                holds = measured_level > level and level <= self._block_level(num_gpus)
                return max(rate, of_blocks) if holds else rate
        return of_blocks

    def _block_level(self, num_gpus: int) -> Level:
        size = num_gpus.bit_length() - 1
        return self.block_levels[size] if size < len(self.block_levels) else NODE

    def guaranteed(self, level: Level = CLUSTER) -> ScalingCurve | None:
        """The curve that a promise may count on if `level` or a faster one connects the GPUs; None if it never runs."""
        levels = [level, *(measured_level for measured_level in self.by_level if measured_level < level)]
        curves = [*self.by_level.values(), *([self.of_blocks] if self.of_blocks else [])]
        slowest = {
            num_gpus: min(self.throughput(num_gpus, at_level) for at_level in levels)
            for num_gpus in sorted({num_gpus for curve in curves for num_gpus in curve.num_gpus_L})
        }
        runs = {num_gpus: rate for num_gpus, rate in slowest.items() if rate > 0}
        return ScalingCurve(tuple(runs), tuple(runs.values())) if runs else None

    def time_saved(self, num_gpus: int, level: Level, closer: Level) -> float:
        """The fraction of its time that the job saves on GPUs connected by `closer` instead of `level`; 0 if none."""
        if closer >= level:
            return 0.0
        if not any(curve.throughput(num_gpus) for curve in self.by_level.values()):
            return UNMEASURED_SAVING
        fast = self.throughput(num_gpus, closer)
        return max(1.0 - self.throughput(num_gpus, level) / fast, 0.0) if fast else 0.0


def placement_curves(
    measured: MeasuredCurve | None, factor: float = 1.0, block_levels: tuple[Level, ...] = ()
) -> PlacementCurves:
    """The curves of a profile by level. factor: the part of each throughput to count on."""
    if measured is None:
        return PlacementCurves(None, {})
    by_level = {level: _scaling_curve(rates, factor) for level, rates in measured.at_level.items()}
    return PlacementCurves(
        _scaling_curve(measured.iterations_per_s, factor),
        {level: curve for level, curve in by_level.items() if curve is not None},
        block_levels,
    )


def _scaling_curve(rates: Mapping[int, float], factor: float) -> ScalingCurve | None:
    points = sorted((n, rate * factor) for n, rate in rates.items() if n > 0 and not n & (n - 1) and rate > 0)
    return ScalingCurve(tuple(n for n, _ in points), tuple(rate for _, rate in points)) if points else None
