"""The devices of a benchmark's workers: CPU slots, or the GPUs of this machine, which several workers may share."""

from enum import StrEnum
from typing import Any

import torch


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def device_fields(device: Device, rank: int) -> dict[str, Any]:
    """Of the assignment of a rank. Workers take turns on the GPUs."""
    num_gpus = torch.cuda.device_count() if device == Device.CUDA else rank + 1
    return {"device": device.value, "gpu_index": rank % num_gpus}
