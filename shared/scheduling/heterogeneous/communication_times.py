"""How long the workers of a step communicate, by their number: a distributed step less the slowest worker's own step.

Axis: P = points. Source: VirtualFlow, section 5.1.2.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise


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
