"""The GPUs of this machine as NVIDIA's management library lists them. It makes no CUDA context."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pynvml

from elasticflow.shared.runtime.process.local_hardware import LocalGpu, gpu_type_of


def installed_gpus() -> tuple[LocalGpu, ...]:
    """Empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(gpu for index in range(pynvml.nvmlDeviceGetCount()) for gpu in _gpus_at(index))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpus_at(index: int) -> Iterator[LocalGpu]:
    """The GPU, or the instances into which it is partitioned. Raises NVMLError."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if not _is_partitioned(handle):
        yield _described(handle, str(index), index, _device_file(handle))
        return
    for instance in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError):
            part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, instance)
            yield _described(part, pynvml.nvmlDeviceGetUUID(part), index, _device_file(handle))


def _is_partitioned(handle: Any) -> bool:
    try:
        enabled, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:  # not supported
        return False
    return enabled == pynvml.NVML_DEVICE_MIG_ENABLE


def _device_file(handle: Any) -> str:
    """Its number is not the index: the driver may count in another order."""
    try:
        return f"nvidia{pynvml.nvmlDeviceGetMinorNumber(handle)}"
    except pynvml.NVMLError:
        return ""


def _described(handle: Any, name: str, index: int, device_file: str) -> LocalGpu:
    memory_bytes = 0
    with suppress(pynvml.NVMLError):
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    gpu_type = gpu_type_of(pynvml.nvmlDeviceGetName(handle))
    return LocalGpu(name, gpu_type, memory_bytes, pynvml.nvmlDeviceGetUUID(handle), index, device_file)
