"""The health and use of this machine's GPUs, as NVIDIA's management library (NVML) reports them. Blocking.

What a GPU or driver does not support is left out. No error of the library ends its reader.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pynvml

_XID_EVENTS_AT_ONCE = 100
# None of these is the load's own doing: idle, and clocks that its user has set.
_THROTTLING = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_RECOVERY_ACTIONS = {
    1: "needs a reset",
    2: "needs a reboot of its machine",
    4: "needs to be drained and reset",
    6: "needs a reset of its bus",
    7: "needs a reboot of its machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """None: unknown. utilization: the fraction of the last second in which a kernel ran. xids: new ones since the last
    reading. problem: why nothing should be computed on it; "": nothing is known against it."""

    utilization: float | None = None
    memory_used_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled_by: tuple[str, ...] | None = None
    corrected_ecc_errors: int | None = None  # since the driver was loaded
    uncorrected_ecc_errors: int | None = None
    remapped_rows: int | None = None
    xids: tuple[int, ...] = ()
    problem: str = ""


class GpuReader:
    """uuids: of each GPU, as NVML names it. nvml: the library's interface."""

    def __init__(self, uuids: Sequence[str], nvml: Any = pynvml) -> None:
        self._nvml, self._uuids = nvml, uuids
        self._handles: dict[str, Any] = {}
        self._events: Any = None
        self._has_begun = False

    def open(self) -> bool:
        """Whether there is a library, and one of these GPUs."""
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return False
        self._has_begun = True
        for uuid in dict.fromkeys(filter(None, self._uuids)):
            with suppress(self._nvml.NVMLError):
                self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        with suppress(self._nvml.NVMLError):
            self._events = self._nvml.nvmlEventSetCreate()
        for handle in self._handles.values() if self._events is not None else ():
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, self._events)
        return bool(self._handles)

    def close(self) -> None:
        if self._has_begun:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._has_begun, self._handles, self._events = False, {}, None

    def read(self) -> dict[int, GpuReading]:
        """By index of the GPU here; those that are unknown are left out. GPUs that are the same one have the same."""
        xids = self._new_xids()
        by_uuid = {uuid: self._read(handle, tuple(xids.get(uuid, ()))) for uuid, handle in self._handles.items()}
        return {index: by_uuid[uuid] for index, uuid in enumerate(self._uuids) if uuid in by_uuid}

    def _read(self, handle: Any, xids: tuple[int, ...]) -> GpuReading:
        nvml = self._nvml
        use = self._asked(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._asked(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = self._asked(nvml.nvmlDeviceGetPowerUsage, handle)
        clocks = self._asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        rows = self._asked(nvml.nvmlDeviceGetRemappedRows, handle)  # corrected, uncorrected, pending, failed
        volatile = nvml.NVML_VOLATILE_ECC
        uncorrected = self._asked(
            nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
        )
        corrected = self._asked(
            nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile
        )
        return GpuReading(
            utilization=None if use is None else use.gpu / 100,
            memory_used_bytes=None if memory is None else int(memory.used),
            temperature_c=self._asked(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            throttled_by=None if clocks is None else tuple(name for bit, name in _THROTTLING.items() if clocks & bit),
            corrected_ecc_errors=corrected,
            uncorrected_ecc_errors=uncorrected,
            remapped_rows=None if rows is None else rows[0] + rows[1],
            xids=xids,
            problem=self._problem(handle, rows),
        )

    def _problem(self, handle: Any, rows: tuple[int, int, int, int] | None) -> str:
        """The driver's own judgement, where it has one; else what its documentation takes for a reason to reset."""
        action = self._recovery_action(handle)
        if action is not None:
            return _RECOVERY_ACTIONS.get(action, "")
        if rows is not None and rows[3]:
            return "has no spare row of memory left for a broken one"
        if rows is not None and rows[2]:
            return "needs a reset to replace a broken row of memory"
        return ""

    def _recovery_action(self, handle: Any) -> int | None:
        """None: the driver has no judgement."""
        with suppress(self._nvml.NVMLError, AttributeError, IndexError):
            (field,) = self._nvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
            if field.nvmlReturn == self._nvml.NVML_SUCCESS:
                return int(field.value.uiVal)
        return None

    def _new_xids(self) -> dict[str, list[int]]:
        xids: dict[str, list[int]] = {}
        for event in self._new_events():
            with suppress(self._nvml.NVMLError):
                xids.setdefault(self._nvml.nvmlDeviceGetUUID(event.device), []).append(int(event.eventData))
        return xids

    def _new_events(self) -> Iterator[Any]:
        if self._events is None:
            return
        for _ in range(_XID_EVENTS_AT_ONCE):
            try:
                yield self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # a time-out: there is none
                return

    def _asked(self, call: Any, *arguments: Any) -> Any:
        """None if this GPU or driver does not know it."""
        with suppress(self._nvml.NVMLError):
            return call(*arguments)
        return None
