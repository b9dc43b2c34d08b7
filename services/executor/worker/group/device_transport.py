"""Decides which transport moves the tensors of a group's device."""

# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import hashlib
import json
import socket
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import combinations

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport, StagedTransport
from elasticflow.services.executor.worker.group.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.tcp_connections import CHECK_NETWORK, warn_unconnected
from elasticflow.services.executor.worker.group.transport import Membership, Transport
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import is_out_of_memory, pci_address

# --- device identity -----------------------------------------------------------------------------------
# Where the device of a worker is and what it computes with, as the workers of a group tell each other.

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
    """The identity of this worker's device."""
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
    """The identity as a tensor, equally long for all workers."""
    content = json.dumps(asdict(identity)).encode()
    assert len(content) <= _BYTES
    return torch.frombuffer(bytearray(content.ljust(_BYTES)), dtype=torch.uint8)


def decoded(received: torch.Tensor) -> DeviceIdentity:
    return DeviceIdentity(**json.loads(bytes(received.tolist())))


def _this_host() -> str:
    return hashlib.sha256(f"{socket.gethostname()} {uuid.getnode()}".encode()).hexdigest()


# --- nccl problems -------------------------------------------------------------------------------------
# What an operator can do about GPUs that NCCL does not connect: one line for the job's log.

_CAUSES = (  # in NCCL's messages, the most specific ones first
    (
        ("out of memory", "CUDA calloc", "CUDA malloc"),
        "NCCL's buffers need memory of the GPU beside the job's, and those of two groups during a resize: end other "
        "processes on it, set NCCL_MAX_CTAS or NCCL_BUFFSIZE (bytes) lower for all executors, or let the job use less",
    ),
    (
        ("Duplicate GPU",),
        "two workers have one GPU, which their executors do not see: let their CUDA_VISIBLE_DEVICES name different "
        "GPUs, or give the executors of one machine one host name",
    ),
    (("ncclSystemError", "system error", "ncclRemoteError", "remote", "socket", "did not answer"), CHECK_NETWORK),
)
_ELSE = "set NCCL_DEBUG=WARN for the executors: NCCL then writes the cause to the job's log"


def one_line(message: str) -> str:
    """One line of torch's error: NCCL's result and its last error, without the frames of the library."""
    return " ".join(message.partition("Exception raised from")[0].split())


def advice_for(reason: str) -> str:
    return next((advice for texts, advice in _CAUSES if any(text in reason for text in texts)), _ELSE)


def warn_of_nccl(reason: str) -> None:
    """reason: one line."""
    warn_unconnected("nccl", reason, advice_for(reason))


# --- device transport ----------------------------------------------------------------------------------


class Route(Enum):
    """The way by which tensors of the device travel between workers: the same for all workers of a group."""

    HOST = "gloo; a worker on a GPU copies from and to the host"
    NCCL = "between the GPUs"


def route_between(identities: Sequence[DeviceIdentity]) -> Route:
    """identities: of all workers. Raises TrainingFailed if they need NCCL and one of them lacks it."""
    kinds = {each.kind for each in identities}
    if kinds != {"cuda"} or any(share_a_gpu(one, other) for one, other in combinations(identities, 2)):
        return Route.HOST
    if lacking := [rank for rank, each in enumerate(identities) if not each.has_nccl]:
        raise TrainingFailed(
            f"torch {torch.__version__} of rank {lacking[0]} has no NCCL, by which {len(identities)} workers on GPUs "
            "exchange tensors: install torch's build for CUDA on Linux on its node, or limit the job to one GPU "
            "(--max-gpus 1)"
        )
    return Route.NCCL


def device_transport(
    gloo: GlooTransport,
    member: Membership,
    *,
    device: torch.device,
    identities: Sequence[DeviceIdentity],
    collective_timeout_s: float | None = None,
) -> Transport:
    """A collective of all workers, whose identities decide alike on each of them.

    collective_timeout_s: of NCCL's calls afterwards; None: as long as to connect. Raises RendezvousAborted; PeerLost if
    NCCL does not connect; TrainingFailed if torch lacks it.
    """
    if route_between(identities) is Route.HOST:
        return gloo if identities[member.rank].kind == "cpu" else StagedTransport(gloo, device)
    try:
        return NcclTransport(member, device=device, collective_timeout_s=collective_timeout_s)
    except (TimeoutError, RuntimeError) as error:
        if not isinstance(error, TimeoutError | dist.DistError) and not is_out_of_memory(error):
            raise
        warn_of_nccl(reason := one_line(str(error)))
        raise PeerLost(reason) from error
