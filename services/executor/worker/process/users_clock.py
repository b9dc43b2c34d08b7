"""What clocks tell user code: numbers that are of this process, and no state of the job.

Two workers never measure the same, so a timer would look like a value that depends on the part of the batch; and a
reading of another machine's clock means nothing here. Calculations keep both kinds apart from other numbers.
"""

import sys
import time
import timeit
from collections.abc import Callable
from functools import wraps
from typing import Any

from elasticflow.services.executor.worker.process.users_code import is_users_frame

CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


class Duration(float):
    """Seconds, or what is calculated with them, such as steps for each second."""

    def __round__(self, digits: Any = None) -> Any:
        return round(float(self)) if digits is None else type(self)(round(float(self), digits))


class Reading(float):
    """What a clock shows. The difference of two readings is a duration."""

    def __add__(self, other: Any) -> Any:
        return _as(Reading, float.__add__(self, other))

    def __radd__(self, other: Any) -> Any:
        return _as(Reading, float.__radd__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _as(Duration if isinstance(other, Reading) else Reading, float.__sub__(self, other))


def _as(kind: type[float], value: Any) -> Any:
    return value if value is NotImplemented else kind(value)


def _kept(name: str) -> Callable[..., Any]:
    calculate = getattr(float, name)

    def operation(self: Duration, *others: Any) -> Any:
        if others and isinstance(others[0], Reading):
            return NotImplemented  # a reading and a duration make a reading
        return _as(Duration, calculate(self, *others))

    return operation


for _name in ("add", "sub", "mul", "truediv"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(Duration, _form, _kept(_form))
for _form in ("__neg__", "__abs__"):
    setattr(Duration, _form, _kept(_form))


def mark_clock_readings() -> None:
    """From now on, what clocks tell functions of the user's is known as such."""
    for name in CLOCKS:
        setattr(time, name, _marked(getattr(time, name)))
    timeit.default_timer = time.perf_counter


def _marked(clock: Callable[[], float]) -> Callable[[], float]:
    @wraps(clock)
    def read() -> float:
        return Reading(clock()) if is_users_frame(sys._getframe(1)) else clock()  # pyright: ignore[reportPrivateUsage]

    return read
