"""Throughput of a job by what connects its GPUs, and what a closer placement is worth.

A table that was measured at a known level has a profile key with that level, "resnet50/b256@node". The table under the
plain key was measured at an unknown level and is used where no other exists.
Source: ElasticFlow, section 3.2 and figure 2(b).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.placement.topology import CLUSTER, LEVEL_BY_NAME, Level
from elasticflow.shared.state.measured_curve import MeasuredCurve

UNMEASURED_SAVING = 0.1
"""Assumed fraction of its time that a closer placement saves where no table exists. Cautious: figure 2(b) shows
more than
half for ResNet50 on one node instead of eight. No promise counts on it.
"""


@dataclass(frozen=True, slots=True)
class PlacementCurves:
    """The scaling curves of one job by level, and the one measured at an unknown level."""

    anywhere: ScalingCurve | None
    by_level: Mapping[Level, ScalingCurve]

    def throughput(self, num_gpus: int, level: Level) -> float:
        """Iterations/s on GPUs that `level` connects, never too high; 0 if the job cannot run there.

        Taken from this level, else from the next slower level, else from the curve of unknown level.
        """
        for measured_level in sorted(self.by_level):
            if measured_level >= level and (rate := self.by_level[measured_level].throughput(num_gpus)):
                return rate
        return self.anywhere.throughput(num_gpus) if self.anywhere else 0.0

    def guaranteed(self, level: Level = CLUSTER) -> ScalingCurve | None:
        """The curve that a promise may count on if `level` or a faster one connects the GPUs; None if it never runs."""
        levels = [level, *(measured_level for measured_level in self.by_level if measured_level < level)]
        curves = [*self.by_level.values(), *([self.anywhere] if self.anywhere else [])]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationBenefit:
    """The value of a placement to a job. stay_s: how long it stays there; stop_s: the stop that a migration costs."""

    curves: PlacementCurves
    num_gpus: int
    stay_s: float
    stop_s: float

    def gained_gpu_seconds(self, level: Level, closer: Level) -> float:
        """GPU-seconds that a closer placement saves while the job stays."""
        return self.num_gpus * self.stay_s * self.curves.time_saved(self.num_gpus, level, closer)

    @property
    def lost_gpu_seconds(self) -> float:
        """GPU-seconds that a migration costs the job."""
        return self.num_gpus * self.stop_s


def placement_curves(measured: Mapping[str, MeasuredCurve], profile_key: str, factor: float = 1.0) -> PlacementCurves:
    """The curves of a profile by level. factor: the part of each throughput to count on."""
    by_level = {
        level: curve
        for name, level in LEVEL_BY_NAME.items()
        if (curve := _curve(measured.get(f"{profile_key}@{name}"), factor)) is not None
    }
    return PlacementCurves(_curve(measured.get(profile_key), factor), by_level)


def _curve(measured: MeasuredCurve | None, factor: float) -> ScalingCurve | None:
    return None if measured is None else _scaling_curve(tuple(measured.iterations_per_s.items()), factor)


def _scaling_curve(rates: tuple[tuple[int, float], ...], factor: float) -> ScalingCurve | None:
    points = sorted((n, rate * factor) for n, rate in rates if n > 0 and not n & (n - 1) and rate > 0)
    return ScalingCurve(tuple(n for n, _ in points), tuple(rate for _, rate in points)) if points else None
