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
        """Add points of another type outside the measured range, by one ratio of speeds, and marked as predicted."""
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


# --- communication times -------------------------------------------------------------------------------
# How long the workers of a step communicate, by their number: a distributed step less the slowest worker's own step.
#
# Axis: P = points. Source: VirtualFlow, section 5.1.2.


@dataclass(frozen=True, slots=True)
class CommunicationTimes:
    """Seconds of a step by number of workers; one worker needs none.

    num_workers_P: from 2, increasing; communication_s_P: not decreasing. Without points, communication is free.
    measured: on these GPUs; else predicted from those of another type.
    Raises ValueError if the points are invalid.
    """

    num_workers_P: tuple[int, ...] = ()
    communication_s_P: tuple[float, ...] = ()
    measured: bool = True

    def __post_init__(self) -> None:
        if len(self.num_workers_P) != len(self.communication_s_P):
            raise ValueError("communication needs one time for each number of workers")
        if any(low >= high for low, high in pairwise((1, *self.num_workers_P))):
            raise ValueError(f"numbers of workers must be 2 or more, and increase: {self.num_workers_P}")
        times_s = (0.0, *self.communication_s_P, math.inf)
        if not all(low <= high for low, high in pairwise(times_s)) or math.inf in self.communication_s_P:
            raise ValueError(f"times of communication must be finite and not decrease: {self.communication_s_P}")

    @classmethod
    def of_measurements(cls, steps_s: Mapping[int, tuple[float, float]]) -> "CommunicationTimes":
        """steps_s: by number of workers, the distributed step and the slowest worker's own step, in seconds.

        A time that is below that of fewer workers is noise: the longer one counts for both.
        """
        num_workers_P = tuple(sorted(steps_s))
        differences_s = (steps_s[num_workers][0] - steps_s[num_workers][1] for num_workers in num_workers_P)
        at_least_0_P = tuple(accumulate((max(difference_s, 0.0) for difference_s in differences_s), max))
        return cls(num_workers_P, at_least_0_P)

    def times(self, factor: float) -> "CommunicationTimes":
        """Predicted of GPUs that communicate for so many times as long."""
        return replace(self, communication_s_P=tuple(factor * s for s in self.communication_s_P), measured=False)

    def at(self, num_workers: int) -> float:
        """Linear in the logarithm of the number: from (1 worker, 0 s) through the points, and beyond the last two."""
        if num_workers <= 1 or not self.num_workers_P:
            return 0.0
        index = bisect_left(self.num_workers_P, num_workers)
        if index < len(self.num_workers_P) and self.num_workers_P[index] == num_workers:
            return self.communication_s_P[index]
        index = min(index, len(self.num_workers_P) - 1)
        low, low_s = (self.num_workers_P[index - 1], self.communication_s_P[index - 1]) if index else (1, 0.0)
        high, high_s = self.num_workers_P[index], self.communication_s_P[index]
        part = math.log(num_workers / low) / math.log(high / low)
        at_s = low_s + part * (high_s - low_s)
        return min(at_s, high_s) if num_workers < high else max(at_s, high_s)
