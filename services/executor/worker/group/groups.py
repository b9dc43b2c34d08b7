"""A group of connected workers: collectives on their devices, and over gloo for tensors on the host.

A process holds several groups at a time, since a worker switches generations while it trains. torch's default group is
one for the whole process, so these groups are not registered with torch. They only move bytes, except `all_reduce`.
Losses of peers are in peer_loss.py.
"""

# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.group.device_transport import decoded, device_transport, encoded, identity_of
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, ThreadAbandoned, raising_peer_lost
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.group.transport import Membership, Transfer, Transport

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
