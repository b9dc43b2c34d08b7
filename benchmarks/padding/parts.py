"""A part of the benchmark: its measurement, and the rows of the table."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.report import RowsOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """scale: of the work, 1 for numbers to quote. num_kills, num_tasks: of the part `kills`."""

    scale: float
    num_kills: int
    num_tasks: int

    def scaled(self, number: int) -> int:
        return max(int(number * self.scale), 1)


@dataclass(frozen=True, slots=True)
class Part:
    measure: Callable[[Options], Awaitable[Any]]  # what the JSON object has under the name of the part
    rows: RowsOf
