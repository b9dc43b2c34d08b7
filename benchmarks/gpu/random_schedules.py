"""Random joins, leaves and kills of workers on one GPU: does any change a bit?"""

import asyncio
from collections.abc import Callable, Iterable

from benchmarks.engine import schedules
from benchmarks.engine.parts import Device
from benchmarks.report import Measured, Row

_NUM_SCHEDULES = 10
_VIRTUAL_NODES = 8


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    seeds = range(1 if quick else _NUM_SCHEDULES)
    note(**asyncio.run(schedules.prove(_VIRTUAL_NODES, seeds, schedules.Conditions(device=device))))


def rows(measured: Measured) -> Iterable[Row]:
    wrong = len(measured["differences"]) + len(measured["unfinished"])
    what = f"{measured['schedules']} random schedules, {measured['killed']} kills: states that differ, or no end"
    yield Row(what, str(wrong), "0", f"{measured['states_compared']} states compared")
