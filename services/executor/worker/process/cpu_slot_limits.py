"""What a CPU slot may use: a share of a core, and the memory of tasks."""

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path


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


# --- memory limit --------------------------------------------------------------------------------------
# Limits the memory that a CPU slot's tasks or jobs may allocate, so that none takes the node's memory.


def limit_memory(num_bytes: int) -> None:
    """Let this process allocate only so many bytes more from now on; an allocation above it raises MemoryError.

    It counts private memory, as RLIMIT_DATA does: no files, no shared memory. Each child process has the same limit for
    itself. Linux only; else no effect.
    """
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = _private_bytes() + num_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (allowed if hard < 0 else min(allowed, hard), hard))


def memory_advice(limit_bytes: int) -> str:
    """What to do about an exceeded limit."""
    return (
        f"the limit is {limit_bytes:,} bytes beyond the libraries that the node has preloaded: "
        "use less memory, or raise the limit of the load"
    )


def job_memory_advice() -> str:
    """What to do about a job's exceeded limit; "" without a limit."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if allowed == resource.RLIM_INFINITY:
        return ""
    return f"the node permits {allowed:,} bytes with its libraries: use less memory, or raise EF_JOB_MEMORY_BYTES there"


def _private_bytes() -> int:
    """What the kernel compares with RLIMIT_DATA."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmData":
            return int(value.split()[0]) * 1024
    raise AssertionError("/proc/self/status has no VmData")
