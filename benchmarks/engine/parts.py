"""A part of the benchmark: a measurement and its table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.engine.device import Device

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """million_parameters: sizes of the model. rounds: repetitions of short measurements. losses: by SIGKILL, in each of
    these rounds."""

    million_parameters: tuple[int, ...] = (1, 25, 100)
    rounds: int = 10
    losses: int = 1
    with_torchft: bool = False
    device: Device = Device.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    measure: Callable[[Options], list[Row]]
    table: Callable[[list[Row]], Table]


def in_ms(row: Row, *names: str) -> tuple[str, ...]:
    """Cells of a table; empty if the row has no such time."""
    return tuple("" if row.get(name) is None else f"{row[name] * 1e3:.1f}" for name in names)


def table_of(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table
