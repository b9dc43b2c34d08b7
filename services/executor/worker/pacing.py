"""A CPU slot is a fixed share of a core: eight slots on two cores behave like eight equal, slow devices.

The worker sleeps after local work, before it meets the others, until its CPU time is no more than that share
of the wall time. Slots are then isolated from each other as long as their shares fit the machine, and more
workers are faster even where they sit on one core.
"""

import time
from collections.abc import Callable


def pause_s(*, cpu_s: float, wall_s: float, cpu_share: float) -> float:
    """Seconds to sleep so that cpu_s is at most cpu_share of the wall time; wall_s have passed already."""
    return max(0.0, cpu_s / cpu_share - wall_s)


class Pacer:
    """Holds this process, and who reads for it, to cpu_share cores over each interval between two calls of `pace`."""

    def __init__(
        self,
        cpu_share: float,
        *,
        cpu_clock: Callable[[], float] = time.process_time,
        wall_clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cpu_share = cpu_share
        self._cpu_clock = cpu_clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._cpu_mark_s = cpu_clock()
        self._wall_mark_s = wall_clock()
        self._charged_s = 0.0

    def charge(self, cpu_s: float) -> None:
        """Count what another process has used for this one."""
        self._charged_s += cpu_s

    @property
    def limits(self) -> bool:
        """Whether it ever sleeps."""
        return self._cpu_share < 1.0

    def pace(self) -> None:
        """Sleep off what this interval has used above the share. No credit is kept: no bursts later."""
        if not self.limits:
            return
        cpu_s = self._cpu_clock()
        pause = pause_s(
            cpu_s=cpu_s - self._cpu_mark_s + self._charged_s,
            wall_s=self._wall_clock() - self._wall_mark_s,
            cpu_share=self._cpu_share,
        )
        if pause > 0:
            self._sleep(pause)
        self._charged_s = 0.0
        self._cpu_mark_s = cpu_s  # what other threads use during the pause counts for the next interval
        self._wall_mark_s = self._wall_clock()
