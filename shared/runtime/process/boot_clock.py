"""One clock for all processes of this machine, which runs on while the machine sleeps or is paused."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: the latter is common to all processes


def boot_s() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(_CLOCK)
