"""How fast jobs were found to train, against their curves: logarithms of measured / curve, counted and averaged."""

from dataclasses import dataclass
from math import log


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSeen:
    """Of one job: its reports. Of a profile: its jobs that ended, each by its own mean.

    scatter: sum of the squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    scatter: float = 0.0

    def and_ratio(self, ratio: float) -> "SpeedSeen":
        """One more measured / curve."""
        return self.and_log(log(ratio))

    def and_log(self, log_ratio: float) -> "SpeedSeen":
        """One more, by its logarithm."""
        count = self.count + 1
        away = log_ratio - self.mean
        mean = self.mean + away / count
        return SpeedSeen(count=count, mean=mean, scatter=self.scatter + away * (log_ratio - mean))


UNSEEN = SpeedSeen()
