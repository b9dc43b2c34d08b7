"""The GPUs and cores of this machine. NVML lists GPUs without CUDA: a process that initialised CUDA cannot fork CUDA
users. A GPU that is partitioned (MIG) counts as its instances.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from elasticflow.shared.messages.limits import MAX_GPU_TYPE_LENGTH
from elasticflow.shared.state.gpu_types import CPU_SLOTS

LEAST_SLOT_MEMORY_BYTES = 2**30  # of a CPU slot, if the machine has it: libraries alone may take hundreds of megabytes
CPU_SLOTS_PART_OF_CORES = 0.8  # all CPU slots of a machine together; the rest is for NATS and the services


class LocalGpu(NamedTuple):
    """A GPU of this machine, or an instance of a partitioned one. name: as CUDA_VISIBLE_DEVICES names it."""

    name: str
    gpu_type: str = ""  # "": unknown
    memory_bytes: int = 0  # 0: unknown
    uuid: str = ""
    device_index: int = -1  # of the whole GPU, as nvidia-smi counts
    device_file: str = ""  # of the whole GPU, in /dev; "": unknown


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory that this process and its children may use: the machine's, or less by a limit of its cgroup."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, cgroup_limit_bytes() or machine)


def slot_memory_bytes(machine_bytes: int, num_slots: int) -> int:
    """What each process of a job on a CPU slot may allocate, unless it is set: its share of the machine."""
    return max(machine_bytes // num_slots, min(LEAST_SLOT_MEMORY_BYTES, machine_bytes))


def cgroup_limit_bytes(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """The least limit of the cgroup (v2) of this process and those around it; 0 without one.

    In a container the own cgroup is the root of the file system.
    """
    path = next((line[3:] for line in _lines(own) if line.startswith("0::")), "/")
    folder = cgroups / path.strip("/")
    around = [folder, *(parent for parent in folder.parents if parent.is_relative_to(cgroups))]
    limits = (line for each in around for line in _lines(each / "memory.max") if line.isdigit())
    return min(map(int, limits), default=0)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def visible_gpus(environment: Mapping[str, str]) -> tuple[LocalGpu, ...]:
    """GPUs of a process with this environment: where CUDA_VISIBLE_DEVICES is set, those before the first that it names
    and that is not there; else all of the driver's."""

    installed = installed_gpus()
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None or not installed:
        return installed
    found: list[LocalGpu] = []
    for name in named.split(","):
        gpu = _named(name.strip(), installed)
        if gpu is None:
            break
        found.append(gpu)
    return tuple(found)


def gpu_type_of(product_name: str) -> str:
    """The GPU type for NVML's name of a product: "NVIDIA H100 80GB HBM3" has the type "H100-80GB-HBM3".

    The brand before the model is left out, because it depends on the release of the driver. Each run of other
    characters than letters, digits, "." and "_" becomes one "-".
    """
    model = re.sub(r"^(?:(?:NVIDIA|Tesla) )+", "", product_name)
    return re.sub(r"[^A-Za-z0-9._]+", "-", model).lstrip("-._")[:MAX_GPU_TYPE_LENGTH].rstrip("-._")


def part_of_type(gpu_type: str, parts: int) -> str:
    """The type of slots that share each GPU: "H100-80GB-HBM3-1of4"."""
    return f"{gpu_type}-1of{parts}" if gpu_type and parts > 1 else gpu_type


def cpu_slot_type(cpu_share: float) -> str:
    """The GPU type of CPU slots: "cpu-0.25" for a quarter of a core. A share of 1 or more is no limit: "cpu-1"."""
    return f"{CPU_SLOTS}{min(1.0, cpu_share):.3g}"


def _named(name: str, installed: Sequence[LocalGpu]) -> LocalGpu | None:
    """The GPU of this name, an index or the beginning of a UUID; None if it is not there.

    Of a partitioned GPU, an index means the first instance, as for CUDA.
    """
    for gpu in installed:
        if name == str(gpu.device_index):
            return gpu
        if name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name):
            return gpu._replace(name=name)
    return None


# --- nvml ----------------------------------------------------------------------------------------------
# The GPUs of this machine as NVIDIA's management library lists them. It makes no CUDA context.


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
