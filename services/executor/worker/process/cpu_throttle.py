"""Limits a CPU slot to a fixed share of a core: eight slots on two cores behave like eight equal, slow devices.

After local work, before it waits for peers, the worker sleeps until its CPU time is at most its share of the wall time.
Slots do not affect each other while their shares fit the machine, so more workers are faster even on one core.
"""

import time
from collections.abc import Callable


def pause_s(*, cpu_s: float, wall_s: float, cpu_share: float) -> float:
    """Seconds to sleep so that cpu_s is at most cpu_share of the wall time, of which wall_s have passed."""
    return max(0.0, cpu_s / cpu_share - wall_s)


class CpuThrottle:
    """Limits this process and its reader processes to cpu_share cores, between any two calls of `sleep_off_excess`."""

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
        self.restart()

    def restart(self) -> None:
        """Begin an interval. What the process did before it trained, or between two generations, is no device's work: a
        thread of gloo may use a whole core until the connections of a lost peer are closed."""
        self._cpu_mark_s = self._cpu_clock()
        self._wall_mark_s = self._wall_clock()
        self._charged_s = 0.0

    def charge(self, cpu_s: float) -> None:
        """Add CPU time that another process has used for this one."""
        self._charged_s += cpu_s

    @property
    def limits(self) -> bool:
        """Whether it ever sleeps."""
        return self._cpu_share < 1.0

    def sleep_off_excess(self) -> None:
        """Sleep until this interval is within the share. Unused time earns no credit for later bursts."""
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
        self._cpu_mark_s = cpu_s  # other threads' CPU time during the pause counts for the next interval
        self._wall_mark_s = self._wall_clock()
