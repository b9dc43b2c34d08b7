"""One clock for all processes of this machine, which runs on while the machine sleeps or is paused."""

import contextlib
import time
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: the latter is common to all processes


def boot_s() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """The name of this start of this machine; "" if it has none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""
