"""What an operator can do about a GPU that does not start, or that other processes use: one line for the job's log."""

from collections.abc import Mapping
from contextlib import suppress

import structlog
import torch

log = structlog.get_logger()

SLOTS_OF_GPU = "EF_SLOTS_OF_GPU"  # in the environment of a worker: the executor's slots that have its GPU
_FULL = ("out of memory",)
_ABSENT = ("No CUDA GPUs are available", "invalid device ordinal", "no CUDA-capable device")
_GIB = 2**30


def advice_for(reason: str, environment: Mapping[str, str]) -> str:
    """reason: CUDA's message at the start. environment: of this worker, which sees its own GPU only."""
    name = environment.get("CUDA_VISIBLE_DEVICES", "")
    if any(text in reason for text in _FULL):
        return f"{_users_of(name)}: end them, or leave the GPU out of the executor's CUDA_VISIBLE_DEVICES"
    if any(text in reason for text in _ABSENT):
        return f"CUDA_VISIBLE_DEVICES is {name!r} here: let that of its executor name GPUs that `nvidia-smi -L` lists"
    return "install a build of torch that fits the node's driver, or start its executor with EF_DEVICE=cpu"


def warn_if_occupied(device: torch.device, environment: Mapping[str, str]) -> None:
    """If less than half of its memory is free before the job uses it, unless slots share it: they are its users."""
    if int(environment.get(SLOTS_OF_GPU, "1")) > 1:
        return
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 2:
        log.warning(
            "gpu_memory_is_taken",
            free_gib=round(free / _GIB, 1),
            total_gib=round(total / _GIB, 1),
            processes=_users_of(environment.get("CUDA_VISIBLE_DEVICES", "")),
            advice="end them, or leave the GPU out of the executor's CUDA_VISIBLE_DEVICES",
        )


def driver_version() -> str:
    """Of the node's GPUs; "" without a driver."""
    with suppress(Exception):  # of NVML: no library, no driver
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return ""


def _users_of(name: str) -> str:
    """The processes that hold its memory, as NVML lists them. name: as in CUDA_VISIBLE_DEVICES."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        by_index = name.isdecimal()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(name)
        users = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        held = [f"{each.pid} ({(each.usedGpuMemory or 0) / _GIB:.1f} GiB)" for each in users]
        return f"processes {', '.join(held)} use it" if held else "processes that NVML does not list use it"
    return "other processes use it"
