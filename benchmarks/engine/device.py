"""The devices of a benchmark's workers: CPU slots, or the GPUs of this machine, which several workers may share."""

from enum import StrEnum
from typing import Any


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def device_fields(device: Device, rank: int) -> dict[str, Any]:
    """The device fields of the assignment of a rank. Workers take turns on the GPUs."""
    import torch  # here: code that only names a device need not wait for it

    num_gpus = torch.cuda.device_count() if device == Device.CUDA else rank + 1
    return {"device": device.value, "gpu_index": rank % num_gpus}
