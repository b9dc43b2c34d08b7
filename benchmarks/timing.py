"""Times of calls: CPU time, as machines are shared and decisions do not wait, and wall time. Processes that measure."""

import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from elasticflow.shared.scheduling.warm_up import warm_up

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of this process, or of some of its calls together."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    def __add__(self, other: "Took") -> "Took":
        return Took(cpu_s=self.cpu_s + other.cpu_s, wall_s=self.wall_s + other.wall_s)


def timed(call: Callable[[], Answer]) -> tuple[Answer, Took]:
    """What it answers, and how long that took."""
    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    answer = call()
    return answer, Took(cpu_s=time.process_time() - began_cpu_s, wall_s=time.perf_counter() - began_s)


def children_cpu_s() -> float:
    """CPU seconds of all processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spreads(times: Mapping[str, Iterable[Took]]) -> dict[str, dict[str, dict[str, float]]]:
    """The spreads of CPU time and of wall time, for each kind of call."""
    return {
        "cpu_ms": {what: spread_ms([took.cpu_s for took in tooks]) for what, tooks in times.items()},
        "wall_ms": {what: spread_ms([took.wall_s for took in tooks]) for what, tooks in times.items()},
    }


def spread_ms(times_s: list[float]) -> dict[str, float]:
    """Mean, median, 99th percentile and maximum, in milliseconds."""
    return {
        "mean": 1e3 * float(np.mean(times_s)),
        "p50": 1e3 * float(np.percentile(times_s, 50)),
        "p99": 1e3 * float(np.percentile(times_s, 99)),
        "max": 1e3 * max(times_s),
    }


# --- processes -----------------------------------------------------------------------------------------


def new_workers(count: int) -> ProcessPoolExecutor:
    """What is compiled once is compiled before anything is measured; at Ctrl-C they end without a word."""
    return ProcessPoolExecutor(count, initializer=_get_ready)


def _get_ready() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warm_up()
