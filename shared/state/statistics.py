"""Statistics of the fold: recent demand for deadlines, and measured speeds against scaling curves."""

from dataclasses import dataclass
from math import log

CHUNK = 256  # submissions
MAX_CHUNKS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The newest submissions with a deadline, promised or not. Selective admission expects similar ones to come.

    A chunk holds at_s and the required GPU-seconds of each, one after another. Full chunks never change, so an
    addition costs the same after ten submissions and after ten thousand.
    """

    since_s: float | None = None  # the first submission of all
    full: tuple[tuple[float, ...], ...] = ()  # oldest first
    newest: tuple[float, ...] = ()

    def added(self, at_s: float, gpu_seconds: float) -> "Demand":
        """With one more submission; the oldest are dropped."""
        newest = (*self.newest, at_s, gpu_seconds)
        since_s = at_s if self.since_s is None else self.since_s
        if len(newest) < 2 * CHUNK:
            return Demand(since_s=since_s, full=self.full, newest=newest)
        return Demand(since_s=since_s, full=(*self.full[-(MAX_CHUNKS - 1) :], newest), newest=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedStatistics:
    """Logarithms of measured / expected speed: of a job, its reports; of a profile, the means of its ended jobs.

    scatter: sum of squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    scatter: float = 0.0

    def with_ratio(self, ratio: float) -> "SpeedStatistics":
        """With one more ratio of measured to expected speed."""
        return self.with_log_ratio(log(ratio))

    def with_log_ratio(self, log_ratio: float) -> "SpeedStatistics":
        """With one more logarithm of such a ratio."""
        count = self.count + 1
        distance = log_ratio - self.mean
        mean = self.mean + distance / count
        return SpeedStatistics(count=count, mean=mean, scatter=self.scatter + distance * (log_ratio - mean))


NO_SPEEDS = SpeedStatistics()
