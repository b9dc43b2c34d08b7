"""Resize cost: seconds without progress at a change of GPUs, by the number of GPUs that the job holds afterwards."""

from bisect import bisect_right
from dataclasses import dataclass


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
