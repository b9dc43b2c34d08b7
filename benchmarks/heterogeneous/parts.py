"""A part of the benchmark: its measurement, and the rows of the table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.report import RowsOf
from elasticflow.simulator.workload.workload import TypedPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """scale: of the work, 1 for numbers to quote. pool, first_seed: of the parts that simulate one."""

    scale: float
    pool: TypedPool
    first_seed: int

    def scaled(self, number: int) -> int:
        return max(int(number * self.scale), 1)


@dataclass(frozen=True, slots=True)
class Part:
    measure: Callable[[Options], Any]  # what the JSON object has under the name of the part
    rows: RowsOf
