"""How long calls take, in CPU time: the machine may be shared, and no decision waits for anything."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

Answer = TypeVar("Answer")


def cpu_ms(call: Callable[[], Answer]) -> tuple[Answer, float]:
    """What it answers, and the milliseconds of CPU time that this took."""
    began_s = time.process_time()
    answer = call()
    return answer, (time.process_time() - began_s) * 1e3


def spread(times_ms: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    return {
        "p50": float(np.percentile(times_ms, 50)),
        "p99": float(np.percentile(times_ms, 99)),
        "max": max(times_ms),
    }
