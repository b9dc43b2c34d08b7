"""Idle windows: how long GPUs carried no job, by the newest placements."""

from collections.abc import Iterable
from dataclasses import dataclass

MAX_IDLE_WINDOWS = 1_024
CARRIES_A_JOB = float("inf")  # instead of since when a GPU is idle


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWindows:
    """The lengths in seconds of the newest windows that ended, oldest first. num_ended: of all."""

    num_ended: int = 0
    newest_s: tuple[float, ...] = ()

    def added(self, lengths_s: Iterable[float]) -> "IdleWindows":
        """With more windows; the oldest are dropped. A window without a length is none."""
        more = tuple(length_s for length_s in lengths_s if length_s > 0.0)
        if not more:
            return self
        return IdleWindows(num_ended=self.num_ended + len(more), newest_s=(*self.newest_s, *more)[-MAX_IDLE_WINDOWS:])

    def ended_since(self, num_ended: int) -> tuple[float, ...]:
        """The windows after the first `num_ended` ones, as far as they are kept."""
        return self.newest_s[max(len(self.newest_s) - (self.num_ended - num_ended), 0) :]
