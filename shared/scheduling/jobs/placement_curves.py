"""Throughput of a job by what connects its GPUs, and what a closer placement is worth.

The table under the plain key of a profile holds for buddy blocks, on which promised jobs always train. A table of a
known level has that level in its key, "resnet50/b256@cluster". Source: ElasticFlow, sections 3.2 and 4.3, figure 2(b).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.topology import CLUSTER, NODE, Level

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
