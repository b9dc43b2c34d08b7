"""Which GPUs a process sees, found without CUDA: who asks CUDA can no longer fork processes that use it."""

import itertools
import subprocess
from collections.abc import Mapping

_LISTING_TIMEOUT_S = 30.0


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """GPUs of a process with this environment, as CUDA_VISIBLE_DEVICES names them: where it is set, those before the
    first that it names and that is not there; else all of the driver's."""
    installed = _installed_gpus()
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None or not installed:
        return installed
    names = (name.strip() for name in named.split(","))
    return tuple(
        itertools.takewhile(lambda name: name in installed or name.startswith(("GPU-", "MIG-")), names)
    )


def _installed_gpus() -> tuple[str, ...]:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    num_gpus = sum(line.startswith("GPU ") for line in listing.splitlines())
    return tuple(map(str, range(num_gpus)))
