"""What moves the tensors of a group: gloo on the host, NCCL between GPUs, or gloo with copies to and from a GPU."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed keeps the broadcast of DistributedDataParallel private)

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

_KNOWN_TYPES = {  # to gloo and to NCCL; others travel as bytes, since only a sum depends on the type
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
}
_COALESCED_BYTES = 250 << 20  # of small tensors that travel together


@dataclass(frozen=True, slots=True)
class Membership:
    """One of `size` workers that connect to each other through a store.

    timeout_s: to connect, and of the host's collectives. aborted: once it is set, connecting ends with
    RendezvousAborted. secret: that the workers prove to each other; "": nothing.
    """

    store: dist.Store
    rank: int
    size: int
    timeout_s: float
    aborted: threading.Event = field(default_factory=threading.Event)
    secret: str = ""


class Transfer(NamedTuple):
    """A tensor to or from a peer. tag: identifies one of several transfers between the same two workers."""

    tensor: torch.Tensor
    peer: int
    tag: int = 0


class Transport(Protocol):
    """Moves tensors of one device between the workers of a group.

    A call may return before the device has the data; later work of the device waits for them, and `wait` blocks this
    process until they are there. After an `abort`, all calls end and may leave garbage, not always with an error.
    """

    @property
    def error(self) -> str:
        """What the library has found by itself; "" if nothing."""
        ...

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        """Begin all transfers, and return what waits for them. Two workers begin theirs in the same order.

        Until that wait the tensors belong to the transport.
        """
        ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The sum, in place, in any order."""
        ...

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        """Overwrite the tensors with the source's."""
        ...

    def wait(self) -> None:
        """Block until the device has all data of the calls before, or an abort ended them."""
        ...

    def abort(self) -> None:
        """End all unfinished calls, here and, in time, at the peers. Callable from any thread, once."""
        ...

    def release(self) -> None:
        """Drop the references to the library's objects; idempotent. Its threads and sockets end with the last one."""
        ...


def broadcast_coalesced(group: dist.ProcessGroup, tensors: list[torch.Tensor], source: int) -> None:
    """Overwrite the tensors with the source's, as DistributedDataParallel does."""
    dense = [tensor if tensor.dtype in _KNOWN_TYPES else tensor.detach().contiguous() for tensor in tensors]
    dist._broadcast_coalesced(group, [in_known_type(tensor) for tensor in dense], _COALESCED_BYTES, source)
    with torch.no_grad():
        for tensor, copy in zip(tensors, dense, strict=True):
            if copy.data_ptr() != tensor.data_ptr():
                tensor.copy_(copy)


def in_known_type(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or its bytes in the order of its memory if a library lacks its type. Its memory is dense."""
    if tensor.dtype in _KNOWN_TYPES:
        return tensor
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
