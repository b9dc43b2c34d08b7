"""Limits the memory that a CPU slot's tasks or jobs may allocate, so that none takes the node's memory."""

import resource
import sys
from pathlib import Path


def limit_memory(num_bytes: int) -> None:
    """From now on, this process may allocate so many bytes more; an allocation above it raises MemoryError.

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
