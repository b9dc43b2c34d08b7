"""Time and fresh names: the only module that asks the operating system for either."""

import asyncio
import contextlib
import hashlib
import os
import time
import uuid
from pathlib import Path
from typing import Protocol


def fresh_id() -> str:
    """A name that was never used before; only for causes, because ids of consequences are derived from them."""
    return uuid.uuid4().hex


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since 1970."""
        ...

    async def sleep_until(self, at_s: float) -> None:
        """Return once now_s() >= at_s."""
        ...


class SystemClock:
    """The wall clock; sleeps follow it even when it is set while they sleep, to within a second."""

    def now_s(self) -> float:
        return time.time()

    async def sleep_until(self, at_s: float) -> None:
        while (remaining_s := at_s - time.time()) > 0:  # noqa: ASYNC110 - no event reports that a clock was set
            await asyncio.sleep(min(remaining_s, 1.0))


# --- boot clock ----------------------------------------------------------------------------------------
# One clock for all processes of this machine, which runs on while the machine sleeps or is paused.

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
