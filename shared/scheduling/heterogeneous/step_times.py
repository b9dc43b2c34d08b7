"""How long a step of one job takes on a GPU type: measured, interpolated between, or predicted and marked so.

Samples are those that one GPU computes in one step, in however many passes its job takes for them.

Axes: P = points, V = virtual nodes on one GPU, from 1.
Source: VirtualFlow, section 5.1.1.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple


class StepTime(NamedTuple):
    """measured: whether this time, or both times that it lies between, were measured."""

    samples: int
    step_s: float
    measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The step time of one GPU of a type, by its samples.

    Raises ValueError without points, if samples do not increase, or if a time is not positive or decreases.
    """

    gpu_type: str
    points_P: tuple[StepTime, ...]

    def __post_init__(self) -> None:
        if not self.points_P:
            raise ValueError(f"step times of {self.gpu_type} need one point or more")
        if self.points_P[0].samples < 1 or not all(0 < point.step_s < math.inf for point in self.points_P):
            raise ValueError(f"samples and step times of {self.gpu_type} must be positive and finite: {self.points_P}")
        if any(low.samples >= high.samples or low.step_s > high.step_s for low, high in pairwise(self.points_P)):
            raise ValueError(f"more samples on {self.gpu_type} must not take less time: {self.points_P}")

    @classmethod
    def of_measurements(cls, gpu_type: str, step_s_by_samples: Mapping[int, float]) -> "StepTimes":
        """A time that is below that of fewer samples is noise: the longer one counts for both."""
        samples_P = sorted(step_s_by_samples)
        step_s_P = accumulate((step_s_by_samples[samples] for samples in samples_P), max)
        return cls(gpu_type=gpu_type, points_P=tuple(map(StepTime, samples_P, step_s_P)))

    def at(self, samples: int) -> StepTime:
        """Linear between two points. Below the first point, its time; beyond the last one, its samples per second.

        A step of few samples has a fixed cost, so that both predictions are rather too long than too short.
        """
        index = bisect_left(self.points_P, samples, key=lambda point: point.samples)
        if index == len(self.points_P):
            last = self.points_P[-1]
            return StepTime(samples, last.step_s * samples / last.samples, measured=False)
        above = self.points_P[index]
        if above.samples == samples:
            return above
        if index == 0:
            return StepTime(samples, above.step_s, measured=False)
        below = self.points_P[index - 1]
        part = (samples - below.samples) / (above.samples - below.samples)
        step_s = below.step_s + part * (above.step_s - below.step_s)
        return StepTime(samples, min(step_s, above.step_s), below.measured and above.measured)

    def speed_ratio(self, other: "StepTimes") -> float | None:
        """How many times as fast as the other type: the geometric mean over samples measured on both; None if none."""
        there = {point.samples: point.step_s for point in other.points_P if point.measured}
        logs = [
            math.log(there[point.samples] / point.step_s)
            for point in self.points_P
            if point.measured and point.samples in there
        ]
        return math.exp(sum(logs) / len(logs)) if logs else None

    def extended_from(self, other: "StepTimes", speed_ratio: float) -> "StepTimes":
        """With points of another type outside the measured range, by one ratio of speeds, and marked as predicted."""
        first, last = self.points_P[0], self.points_P[-1]
        predicted = predicted_from(other, self.gpu_type, speed_ratio).points_P
        below = (point for point in predicted if point.samples < first.samples)
        above = (point for point in predicted if point.samples > last.samples)
        return replace(
            self,
            points_P=(
                *(point._replace(step_s=min(point.step_s, first.step_s)) for point in below),
                *self.points_P,
                *(point._replace(step_s=max(point.step_s, last.step_s)) for point in above),
            ),
        )

    def of_virtual_nodes(self, global_batch_size: int, num_virtual_nodes: int) -> tuple[float, ...]:
        """Step time with 1, 2, ... of the job's virtual nodes, shape (V,).

        Virtual nodes of a job differ by one sample at most; the larger ones count.
        """
        samples_V = (-(-count * global_batch_size // num_virtual_nodes) for count in range(1, num_virtual_nodes + 1))
        return tuple(self.at(samples).step_s for samples in samples_V)


def predicted_from(other: StepTimes, gpu_type: str, speed_ratio: float) -> StepTimes:
    """The step times of a type that was not measured. speed_ratio: how many times as fast as the other type it is.

    Raises ValueError if the ratio is not positive and finite, or if the other type was not measured either.
    """
    if not 0 < speed_ratio < math.inf:
        raise ValueError(f"the ratio of the speeds of {gpu_type} and {other.gpu_type} must be positive: {speed_ratio}")
    points_P = tuple(
        StepTime(point.samples, point.step_s / speed_ratio, measured=False)
        for point in other.points_P
        if point.measured
    )
    return StepTimes(gpu_type=gpu_type, points_P=points_P)
