"""What deadlines were asked for lately, whether promised or not: what selective admission expects to come again."""

from dataclasses import dataclass

CHUNK = 256  # submissions
MAX_CHUNKS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The newest submissions with a deadline: at_s and the GPU-seconds asked for, one after another.

    In chunks that are never changed once they are full: one more costs the same after ten and after ten thousand.
    """

    since_s: float | None = None  # the first of all
    full: tuple[tuple[float, ...], ...] = ()  # oldest first
    newest: tuple[float, ...] = ()

    def added(self, at_s: float, gpu_seconds: float) -> "Demand":
        """One more; the oldest are forgotten."""
        newest = (*self.newest, at_s, gpu_seconds)
        since_s = at_s if self.since_s is None else self.since_s
        if len(newest) < 2 * CHUNK:
            return Demand(since_s=since_s, full=self.full, newest=newest)
        return Demand(since_s=since_s, full=(*self.full[-(MAX_CHUNKS - 1) :], newest), newest=())
