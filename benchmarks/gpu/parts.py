"""The parts of a lease, in the order of their importance. `python -m benchmarks.gpu.parts` measures one of them.

A module is imported only in the process of its part: an error of CUDA ends only that one, and a bare machine lacks
libraries until the lease has installed them.
"""

import importlib
import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.engine.parts import Device
from benchmarks.report import Measured


class PartName(StrEnum):
    """The name of a part, and of its numbers in the JSON object."""

    HOST = "host"
    NCCL = "nccl"
    NCCL_WATCH = "nccl_watch"
    HASHES = "hashes"
    POOL = "pool"
    STEPS = "steps"
    TESTS = "tests"
    MEMORY = "memory"
    COPIES = "copies"
    KILLS = "kills"
    COMPILED_JOIN = "compiled_join"
    SCHEDULES = "schedules"


@dataclass(frozen=True, slots=True)
class Part:
    """module: of benchmarks.gpu, with `measure_NAME` and `rows_of_NAME`. needs_s: estimate for a GPU.

    is_beside: it runs beside the next parts. is_more: measured if time is left, and in a quick run only by name.
    """

    module: str
    needs_s: float
    is_beside: bool = False
    is_more: bool = False


PARTS: Mapping[PartName, Part] = {
    PartName.HOST: Part("host", 20),
    PartName.NCCL: Part("nccl", 70),
    PartName.NCCL_WATCH: Part("nccl", 110, is_beside=True),
    PartName.HASHES: Part("weights", 100),
    PartName.POOL: Part("pool", 75),
    PartName.STEPS: Part("costs", 60),
    PartName.TESTS: Part("marked_tests", 80),
    PartName.MEMORY: Part("weights", 30),
    PartName.COPIES: Part("costs", 60),
    PartName.KILLS: Part("weights", 90, is_more=True),
    PartName.COMPILED_JOIN: Part("weights", 60, is_more=True),
    PartName.SCHEDULES: Part("weights", 120, is_more=True),
}


class Notes:
    """What a part has measured so far, in a file that is whole at any time: a part may be stopped."""

    def __init__(self, name: PartName, out: Path) -> None:
        module = importlib.import_module(f"benchmarks.gpu.{PARTS[name].module}")
        self._measure, self._rows = getattr(module, f"measure_{name}"), getattr(module, f"rows_of_{name}")
        self._out = out
        self._measured: Measured = {}
        self._writing = threading.Lock()

    def measure(self, device: Device, *, quick: bool) -> None:
        self._measure(device, quick=quick, note=self.note)

    def note(self, **numbers: object) -> None:
        """Add numbers; each call writes the file. Callable from any thread."""
        with self._writing:
            self._measured |= numbers
            written = {"measured": self._measured, "rows": list(self._rows(self._measured))}
            beside = self._out.with_suffix(".new")
            beside.write_text(json.dumps(written))
            os.replace(beside, self._out)


if __name__ == "__main__":
    from elasticflow.shared.runtime.process.logs import configure_logs

    configure_logs(level="error")
    name, device, quick, out = sys.argv[1:]
    Notes(PartName(name), Path(out)).measure(Device(device), quick=quick == "1")
