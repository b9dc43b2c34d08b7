"""How much others may ask of an executor: a burst at once, and so many a second in the long run."""

from collections.abc import Callable


class TokenBucket:
    """A token bucket, full at first. clock: monotonic seconds."""

    def __init__(self, most_at_once: float, per_s: float, clock: Callable[[], float]) -> None:
        self._most_at_once, self._per_s, self._clock = most_at_once, per_s, clock
        self._left, self._measured_at_s = most_at_once, clock()

    def takes_one(self) -> bool:
        """Take a token, and return whether there was one."""
        now_s = self._clock()
        earned = (now_s - self._measured_at_s) * self._per_s
        self._left, self._measured_at_s = min(self._left + earned, self._most_at_once), now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
