"""One clock for all processes of this machine, which runs on while the machine sleeps or is paused."""

import contextlib
import hashlib
import os
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


def started_by() -> str:
    """A digest of this start of the machine and of the parent process: the same for each child that it starts."""
    parent, began = os.getppid(), ""
    with contextlib.suppress(OSError, IndexError):
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]  # in ticks since the boot
    return hashlib.sha256(f"{boot_id()} {parent} {began}".encode()).hexdigest()[:16]
