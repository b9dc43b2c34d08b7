"""The GPUs and cores of this machine. GPUs are listed without CUDA: a process that initialised CUDA cannot fork
CUDA users.
"""

import itertools
import os
import subprocess
from collections.abc import Mapping

_LISTING_TIMEOUT_S = 30.0
CPU_SLOTS_PART_OF_CORES = 0.8  # all CPU slots of a machine together; the rest is for NATS and the services


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """GPUs of a process with this environment, as CUDA_VISIBLE_DEVICES names them: where it is set, those before the
    first that it names and that is not there; else all of the driver's."""
    installed = _installed_gpus()
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None or not installed:
        return installed
    names = (name.strip() for name in named.split(","))
    return tuple(itertools.takewhile(lambda name: name in installed or name.startswith(("GPU-", "MIG-")), names))


def _installed_gpus() -> tuple[str, ...]:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    num_gpus = sum(line.startswith("GPU ") for line in listing.splitlines())
    return tuple(map(str, range(num_gpus)))
