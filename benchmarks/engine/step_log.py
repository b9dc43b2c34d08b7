"""The ends of a compared system's steps: its rank 0 appends lines to a file, and the benchmark waits for them.

All processes of a machine share the monotonic clock.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_LOOK_S = 0.005
_TIMEOUT_S = 120.0
# Four workers of 100 M parameters share two cores, and may write 800 MB every ten steps.
_TIMEOUT_PER_MILLION_S = 10.0


@dataclass(frozen=True, slots=True)
class StepEnd:
    at_s: float
    num_workers: int
    process: int  # of the writer


class NoStep(Exception):
    """The awaited step did not happen."""


class StepLog:
    """million_parameters: of the model; larger ones wait longer."""

    def __init__(self, file: Path, million_parameters: int = 0) -> None:
        self._file = file
        self._timeout_s = _TIMEOUT_S + _TIMEOUT_PER_MILLION_S * million_parameters

    def note(self, num_workers: int, process: int) -> None:
        """Record the end of a step with so many workers."""
        with self._file.open("a") as file:
            file.write(f"{time.monotonic()} {num_workers} {process}\n")

    def read(self) -> list[StepEnd]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        fields = [line.split() for line in lines]
        return [StepEnd(float(at_s), int(num), int(process)) for at_s, num, process in fields]

    def first(
        self, is_it: Callable[[StepEnd], bool], *, what: str, alive: Callable[[], bool] = lambda: True
    ) -> StepEnd:
        """Wait for it. alive: whether it may still happen. Raises NoStep."""
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s and alive():
            if found := [step for step in self.read() if is_it(step)]:
                return found[0]
            time.sleep(_LOOK_S)
        raise NoStep(f"{what}: no such step")

    def steady(self, num_workers: int, *, num_steps: int, what: str) -> float:
        """Median seconds of the last steps with this number of workers, once there are so many."""
        deadline_s = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline_s:
            ends_s = [step.at_s for step in self.read() if step.num_workers == num_workers]
            if len(ends_s) > num_steps:
                last = ends_s[-num_steps - 1 :]
                return sorted(b - a for a, b in pairwise(last))[num_steps // 2]
            time.sleep(_LOOK_S)
        raise NoStep(f"{what}: fewer than {num_steps} steps with {num_workers} workers")
