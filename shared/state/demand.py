"""The submissions that selective admission learns its prices from."""
# pyright: strict

from dataclasses import dataclass

DEMAND_CHUNK = 256  # submissions
MAX_DEMAND_CHUNKS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The newest submissions with a deadline, promised or not. Selective admission expects similar ones to come.

    A chunk holds at_s, the least GPU-seconds and the seconds to the deadline of each, one after another. Full chunks
    never change, so an addition costs the same after ten submissions and after ten thousand.
    """

    since_s: float | None = None  # the oldest submission
    full: tuple[tuple[float, ...], ...] = ()  # oldest first
    newest: tuple[float, ...] = ()

    def added(self, at_s: float, gpu_seconds: float, window_s: float) -> "Demand":
        """With one more submission; the oldest are dropped."""
        newest = (*self.newest, at_s, gpu_seconds, window_s)
        since_s = at_s if self.since_s is None else self.since_s
        if len(newest) < 3 * DEMAND_CHUNK:
            return Demand(since_s=since_s, full=self.full, newest=newest)
        full = (*self.full[-(MAX_DEMAND_CHUNKS - 1) :], newest)
        return Demand(since_s=max(since_s, full[0][0]), full=full, newest=())
