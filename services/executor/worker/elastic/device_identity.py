"""Where the device of a worker is and what it computes with, as the workers of a group tell each other."""

import hashlib
import json
import socket
import uuid
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.process.device import pci_address

_BYTES = 512  # of an encoded identity


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """host: the same on all workers of one machine. kind: of the device whose tensors the group moves; "" if none.

    pci_address: of the whole GPU if the worker has a part of it; "" if torch does not tell it. uuid: of the GPU or its
    part. arithmetic: workers for which it differs may compute other bits. has_nccl: whether this torch can use it.
    """

    host: str
    kind: str = ""
    pci_address: str = ""
    uuid: str = ""
    arithmetic: str = ""
    has_nccl: bool = False


def identity_of(device: torch.device | None) -> DeviceIdentity:
    """Of this worker."""
    if device is None:
        return DeviceIdentity(host=_this_host())
    if device.type == "cpu":
        return DeviceIdentity(host=_this_host(), kind="cpu", arithmetic="cpu")
    gpu = torch.cuda.get_device_properties(device)
    return DeviceIdentity(
        host=_this_host(),
        kind=device.type,
        pci_address=pci_address(device),
        uuid=bytes(gpu.uuid.bytes).hex(),
        arithmetic=f"{gpu.name}, {gpu.multi_processor_count} multiprocessors",  # parts of a GPU have fewer
        has_nccl=dist.is_nccl_available(),
    )


def share_a_gpu(one: DeviceIdentity, other: DeviceIdentity) -> bool:
    """Whether NCCL takes their devices for one, as it does with parts of a GPU, or they are one in two containers."""
    same_uuid = one.uuid != "" and one.uuid == other.uuid
    same_address = one.pci_address != "" and (one.host, one.pci_address) == (other.host, other.pci_address)
    return one.kind == other.kind != "cpu" and (same_uuid or same_address)


def encoded(identity: DeviceIdentity) -> torch.Tensor:
    """Equally long for all workers."""
    content = json.dumps(asdict(identity)).encode()
    assert len(content) <= _BYTES
    return torch.frombuffer(bytearray(content.ljust(_BYTES)), dtype=torch.uint8)


def decoded(received: torch.Tensor) -> DeviceIdentity:
    return DeviceIdentity(**json.loads(bytes(received.tolist())))


def _this_host() -> str:
    return hashlib.sha256(f"{socket.gethostname()} {uuid.getnode()}".encode()).hexdigest()
