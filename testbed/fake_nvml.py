"""A library of the interface of pynvml, whose GPUs a test changes. Each may lack what its test names."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As pynvml raises it, of each kind."""


@dataclass
class FakeGpu:
    """unsupported: names of functions that this GPU does not know."""

    uuid: str
    utilization: int = 0  # percent
    memory_used_bytes: int = 1 << 30
    temperature_c: int = 40
    power_mw: int = 100_000
    clocks: int = 0
    corrected: int = 0
    uncorrected: int = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    action: int | None = 0  # None: the driver has no such field
    xids: list[int] = field(default_factory=list[int])
    unsupported: frozenset[str] = frozenset()


class FakeNvml:
    """gpus: on this machine. has_driver: False: the library cannot be loaded."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_VOLATILE_ECC = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_DEVICE_MIG_ENABLE = 1
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *gpus: FakeGpu, has_driver: bool = True) -> None:
        self.gpus, self.has_driver = {gpu.uuid: gpu for gpu in gpus}, has_driver
        self.num_open = 0

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise NVMLError("no driver")
        self.num_open += 1

    def nvmlShutdown(self) -> None:
        self.num_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return list(self.gpus.values())[index]

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:
        raise NVMLError("not supported")

    def nvmlDeviceGetMinorNumber(self, gpu: FakeGpu) -> int:
        return list(self.gpus.values()).index(gpu)

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        if uuid not in self.gpus:
            raise NVMLError("not found")
        return self.gpus[uuid]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return self._if_supported(gpu, "utilization", SimpleNamespace(gpu=gpu.utilization, memory=0))

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(used=gpu.memory_used_bytes, total=80 << 30)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return self._if_supported(gpu, "power", gpu.power_mw)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return gpu.temperature_c

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return gpu.clocks

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        return self._if_supported(gpu, "rows", gpu.rows)

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, kind: int, counter: int) -> int:
        return self._if_supported(gpu, "ecc", (gpu.corrected, gpu.uncorrected)[kind])

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[int]) -> list[Any]:
        if gpu.action is None:
            return [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=0)) for _ in fields]
        return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=gpu.action)) for _ in fields]

    def nvmlEventSetCreate(self) -> list[FakeGpu]:
        return []

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, events: list[FakeGpu]) -> None:
        events.append(gpu)

    def nvmlEventSetWait_v2(self, events: list[FakeGpu], timeout_ms: int) -> Any:
        for gpu in events:
            if gpu.xids:
                return SimpleNamespace(device=gpu, eventData=gpu.xids.pop(0))
        raise NVMLError("timeout")

    def _if_supported(self, gpu: FakeGpu, name: str, value: Any) -> Any:
        if name in gpu.unsupported:
            raise NVMLError("not supported")
        return value


# --- a module in the place of pynvml, for other processes ----------------------------------------------

GPUS_FILE = "FAKE_GPUS"  # the variable with the file that lists them
_MODULE = """
from testbed.fake_nvml import NVMLError as NVMLError
from testbed.fake_nvml import LibraryOfFile

_library = LibraryOfFile()


def __getattr__(name):
    return _library.now(name)
"""


class LibraryOfFile:
    """Its GPUs are as the file says at each call."""

    def __init__(self) -> None:
        self._library = FakeNvml(*self._read())

    def now(self, name: str) -> Any:
        for gpu in self._read():
            vars(self._library.gpus[gpu.uuid]).update(vars(gpu))
        return getattr(self._library, name)

    def _read(self) -> list[FakeGpu]:
        return [FakeGpu(**fields) for fields in json.loads(Path(os.environ[GPUS_FILE]).read_text())]


def in_place_of_pynvml(folder: Path, file: Path) -> dict[str, str]:
    """The environment of processes that find this module instead. file: lists the GPUs, as JSON of `FakeGpu`."""
    folder.mkdir()
    (folder / "pynvml.py").write_text(_MODULE)
    root = Path(__file__).parents[1]
    return {"PYTHONPATH": f"{folder}{os.pathsep}{root}", GPUS_FILE: str(file)}


def write_gpus(file: Path, *gpus: FakeGpu) -> None:
    """Replace the list at once: another process reads it."""
    lines = [{name: value for name, value in vars(gpu).items() if name != "unsupported"} for gpu in gpus]
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(lines))
    unfinished.replace(file)
