"""A group of connected workers: collectives on their devices, and over gloo for tensors on the host.

A process holds several groups at a time, since a worker switches generations while it trains. torch's default group is
one for the whole process, so these groups are not registered with torch. They only move bytes, except `all_reduce`.
Losses of peers are in peer_loss.py.
"""

# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import hashlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport, StagedTransport
from elasticflow.services.executor.worker.group.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, ThreadAbandoned, raising_peer_lost
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.group.tcp_connections import CHECK_NETWORK, warn_unconnected
from elasticflow.services.executor.worker.group.transport import Membership, Transfer, Transport
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import is_out_of_memory, pci_address

_Connect = Callable[[str, float], Transport]  # of an attempt and its time-out in seconds
_BESIDE_S = 30.0  # for a group that connects beside a busy one; NCCL needs a few


class Group:
    """Connected workers, seen from one of them.

    device: of the tensors that the workers exchange beside those on the host; None: there are none. The constructor
    blocks until all are connected. Raises RendezvousAborted. may_connect_later: the device may be busy with another
    group now, and NCCL may wait for that one; if so, `connect_device` at a step boundary ends it.
    """

    def __init__(
        self, member: Membership, *, generation: int, device: torch.device | None, may_connect_later: bool = False
    ) -> None:
        self.generation, self.rank, self.size = generation, member.rank, member.size
        self._state = threading.Lock()
        self._closed = self._is_waiting = self._is_abandoned = False
        self._unchecked = threading.Event()  # the device receives data
        self._device = device
        self._host = GlooTransport(member)
        if member.aborted.is_set():
            raise RendezvousAborted
        with raising_peer_lost():
            received = self._host.all_gather(encoded(identity_of(device)))
        self.identities = tuple(decoded(theirs) for theirs in received)  # by rank
        self.hosts = tuple(theirs.host for theirs in self.identities)
        self._on_device: Transport = self._host
        self._timeout_s = timeout_s = member.timeout_s
        self._connect: _Connect | None = None  # until the devices are connected
        if device is not None:
            self._connect = lambda attempt, within_s: device_transport(
                self._host,
                replace(member, store=dist.PrefixStore(attempt, member.store), timeout_s=within_s),
                device=device,
                identities=self.identities,
                collective_timeout_s=timeout_s,
            )
        if may_connect_later:
            self._connect_together("beside", min(timeout_s, _BESIDE_S))
        else:
            self.connect_device()

    def connect_device(self) -> None:
        """A collective between two steps: connect the devices, if they are not yet. Raises PeerLost if that fails."""
        if failure := self._connect_together("alone", self._timeout_s):
            raise PeerLost(f"the devices of generation {self.generation} did not connect: {failure}")

    def _connect_together(self, attempt: str, timeout_s: float) -> str:
        """All workers connect, or none. Returns why they did not; "" if they are connected."""
        if self._connect is None:
            return ""
        transport, failure = None, ""
        try:
            transport = self._connect(attempt, timeout_s)
        except PeerLost as error:
            failure = str(error)
        is_connected = False
        try:
            with raising_peer_lost():
                have_failed = torch.stack(self._host.all_gather(torch.tensor(transport is None)))
            is_connected = not have_failed.any()
            if transport is not None and not is_connected:
                failure = f"the log of rank {int(have_failed.nonzero()[0])} has the reason"
        finally:
            if transport is not None and not is_connected:  # also if a peer was lost while all compared
                transport.abort()
                transport.release()
        if transport is not None and is_connected:
            self._on_device, self._connect = transport, None
        return failure

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, by rank. They lie on the host."""
        with self._collective():
            return self._host.all_gather(mine)

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The sum, in place, in any order. The result is invalid if `check_received` raises PeerLost afterwards."""
        unchecked = self._unchecked

        def note(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            unchecked.set()  # a check before its end does not count for it, and one that waited for it counts
            return done.value()

        return self._transport_of(tensor).all_reduce(tensor).then(note)

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        """Overwrite a tensor on the host with the source's."""
        with self._collective():
            self._host.broadcast([tensor], source=source)

    def broadcast_all(self, tensors: list[torch.Tensor], *, source: int) -> None:
        """Overwrite the tensors of one device with the source's. They are invalid if `check_received` raises PeerLost
        afterwards."""
        with self._collective():
            self._transport_of(*tensors).broadcast(tensors, source=source)

    def broadcast_object(self, value: Any, *, source: int) -> Any:
        """The source's value. Raises pickle.UnpicklingError unless it is a plain one (`plain_values`)."""
        content = bytearray(encode_value(value) if self.rank == source else b"")
        self.broadcast(size := torch.tensor([len(content)]), source=source)
        data = torch.frombuffer(content or bytearray(int(size)), dtype=torch.uint8)
        self.broadcast(data, source=source)
        return decode_value(data.numpy().tobytes())

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Run all transfers concurrently; received data are invalid if `check_received` raises PeerLost afterwards."""
        self.begin_exchange(sends, receives)()

    def begin_exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> Callable[[], None]:
        """Do what `exchange` does, in two parts: returns what waits for the transfers, in the order of the device's
        work.

        Two workers begin their transfers in the same order. All tensors lie on one device.
        """
        sends, receives = list(sends), list(receives)
        with self._collective():
            transport = self._transport_of(*(transfer.tensor for transfer in (*sends, *receives)))
            wait_for_transport = transport.begin_exchange(sends, receives)

        def wait() -> None:
            with self._collective():
                wait_for_transport()

        return wait

    def barrier(self) -> None:
        """Return when all workers have arrived: closing sockets earlier may cut off a peer's last bytes."""
        self.all_gather(torch.zeros(1))

    def await_all(self) -> None:
        """Do what `barrier` does, for workers that may arrive later than a collective may last."""
        with self._collective():
            self._host.await_all()

    def check_received(self) -> None:
        """Block until the device has received all data that were not yet checked. Raises PeerLost if they may be
        invalid because the group was closed meanwhile."""
        if self._unchecked.is_set():
            self._on_device.wait()
            self.check_open()
            self._unchecked.clear()

    def check_open(self) -> None:
        """Raises PeerLost if the group was closed, or must be."""
        if self._closed:
            raise PeerLost("the group was closed during the computation")
        if error := self._on_device.error or self._host.error:
            self.close()
            raise PeerLost(error)

    def close(self) -> None:
        """End all collectives after the loss of a peer; callable from any thread.

        Peers that wait for this worker fail, and so learn of the loss. Most waits in this process fail as well. torch
        closes the sockets once no reference to the group is left, here or in a forked process.
        """
        with self._state:
            if self._closed:
                return
            self._closed = True
        self._host.abort()
        if self._on_device is not self._host:
            self._on_device.abort()

    def abandon_waiting_thread(self) -> bool:
        """Abandon the thread that still waits in this closed group, for another to continue. False if none waits."""
        with self._state:
            is_newly_abandoned = self._is_waiting and not self._is_abandoned
            self._is_abandoned = self._is_waiting
            return is_newly_abandoned

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Raises PeerLost for a collective that fails in the block, or ThreadAbandoned if the watchdog abandoned it.

        No collective begins in a closed group: it would wait forever behind a partly sent transfer.
        """
        self.check_open()
        with self._state:
            self._is_waiting = not self._closed
        if not self._is_waiting:
            self.check_open()
        try:
            with raising_peer_lost():
                yield
        finally:
            with self._state:
                self._is_waiting = False
            if self._is_abandoned:
                raise ThreadAbandoned

    def release(self) -> None:
        """Drop the references to torch's groups; idempotent. Their threads and sockets end with the last reference."""
        self._on_device.release()
        self._host.release()

    def _transport_of(self, *tensors: torch.Tensor) -> Transport:
        on_device = self._device is not None and any(tensor.device.type == self._device.type for tensor in tensors)
        if on_device:
            self._unchecked.set()
        return self._on_device if on_device else self._host


# --- release -------------------------------------------------------------------------------------------
# Groups and reader processes that are no longer needed are released in a thread: closing them takes time.

_DELAY_S = 1.0  # until the training thread holds no reference: the last holder waits for the closing


def release_later(*things: object) -> None:
    """Drop references in a background thread."""
    threading.Thread(target=_release, args=(list(things),), name="release", daemon=True).start()


def _release(things: list[object]) -> None:
    time.sleep(_DELAY_S)
    for thing in things:
        if isinstance(thing, Group):  # a traceback may still refer to it
            thing.release()
    things.clear()


# --- device transport ---------------------------------------------------------------------------------
# Decides which transport moves the tensors of a group's device.

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
