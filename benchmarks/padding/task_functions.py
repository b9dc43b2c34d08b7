"""Functions that the measured runners execute. The imports are those of an ordinary task function."""

import time
from pathlib import Path

import numpy as np
import torch

from elasticflow.shared.runtime.process.clock import SystemClock

_held: list[torch.Tensor] = []


def nothing(_: None) -> None:
    """The empty task."""


def times(_: None) -> tuple[float, float]:
    """When it began and ended, in seconds of the monotonic clock, which all processes of a machine share."""
    return time.perf_counter(), time.perf_counter()


def hold_memory(num_bytes: int) -> None:
    """Touch and keep so much memory, then never end."""
    _held.append(torch.from_numpy(np.ones(num_bytes, dtype=np.uint8)))
    print("holding", flush=True)
    time.sleep(3600.0)


def draw(seed: int) -> float:
    """A random number of this seed, after 4 ms."""
    time.sleep(0.004)
    return float(np.random.default_rng(seed).normal())


def rest(seconds: float) -> None:
    """Sleep, so that more slots than cores execute tasks at their full speed."""
    time.sleep(seconds)


def rest_and_report(seconds: float) -> None:
    """Sleep, then print the time in seconds since 1970. The output of each slot is a file of its own."""
    time.sleep(seconds)
    print(f"ended at {SystemClock().now_s():.6f}", flush=True)


def burn(cpu_s: float) -> None:
    """Use so much CPU time."""
    began_s = time.process_time()
    while time.process_time() - began_s < cpu_s:
        pass


def burn_until(folder: str) -> None:
    """Use CPU time until the file "enough" is there; create "began" and "ended"."""
    Path(folder, "began").touch()
    while not Path(folder, "enough").exists():
        burn(0.01)
    Path(folder, "ended").touch()
