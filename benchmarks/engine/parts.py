"""The parts of the benchmark: their options, the devices of their workers, a measurement and its table."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.table import Table


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def device_fields(device: Device, rank: int) -> dict[str, Any]:
    """The device fields of the assignment of a rank. Workers take turns on the GPUs."""
    import torch  # here: code that only names a device need not wait for it

    num_gpus = torch.cuda.device_count() if device == Device.CUDA else rank + 1
    return {"device": device.value, "gpu_index": rank % num_gpus}


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
