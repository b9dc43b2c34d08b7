"""A group of connected workers: collectives on their devices, and over gloo for tensors on the host.

A process holds several groups at a time, since a worker switches generations while it trains. torch's default group is
one for the whole process, so these groups are not registered with torch. They only move bytes, except `all_reduce`.
Losses of peers are in peer_loss.py.
"""
# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its stores, but does not export them by the letter)

import pickle
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.device_transport import device_transport
from elasticflow.services.executor.worker.elastic.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.elastic.peer_loss import (
    PeerLost,
    ThreadAbandoned,
    end_as_lost_peer,
    raising_peer_lost,
)
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.elastic.transport import Transfer, Transport

_RELEASE_DELAY_S = 1.0  # until the training thread holds no reference: the last holder waits for the closing


class Group:
    """One of `size` workers that connect under a name in a store.

    device: of the tensors that the workers exchange beside those on the host; None: there are none. The constructor
    blocks until all are connected. Raises RendezvousAborted once `aborted` is set.
    """

    def __init__(
        self,
        store: dist.Store,
        *,
        generation: int,
        rank: int,
        size: int,
        device: torch.device | None,
        timeout_s: float,
        aborted: threading.Event | None = None,
    ) -> None:
        self.generation, self.rank, self.size = generation, rank, size
        self._state = threading.Lock()
        self._closed = self._is_waiting = self._is_abandoned = False
        self._device = device
        aborted = aborted or threading.Event()
        self._host = GlooTransport(store, rank, size, timeout_s=timeout_s, aborted=aborted)
        if aborted.is_set():
            raise RendezvousAborted
        self._on_device: Transport = self._host
        if device is not None:
            self._on_device = device_transport(
                self._host, store, rank, size, device=device, timeout_s=timeout_s, aborted=aborted
            )

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, by rank. They lie on the host."""
        with self._collective():
            return self._host.all_gather(mine)

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The sum, in place, in any order. The result is invalid if `check_received` raises PeerLost afterwards."""
        return self._transport_of(tensor).all_reduce(tensor)

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
        """The source's value, pickled: all workers of a job run the same code anyway."""
        content = bytearray(pickle.dumps(value) if self.rank == source else b"")
        size = torch.tensor([len(content)])
        self.broadcast(size, source=source)
        data = torch.frombuffer(content or bytearray(int(size)), dtype=torch.uint8)
        self.broadcast(data, source=source)
        return pickle.loads(data.numpy().tobytes())

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Run all transfers concurrently; received data are invalid if `check_received` raises PeerLost afterwards.

        Two workers list their transfers in the same order. All tensors lie on one device.
        """
        sends, receives = list(sends), list(receives)
        transport = self._transport_of(*(transfer.tensor for transfer in (*sends, *receives)))
        with self._collective():
            transport.exchange(sends, receives)

    def barrier(self) -> None:
        """Return when all workers have arrived: closing sockets earlier may cut off a peer's last bytes."""
        self.all_gather(torch.zeros(1))

    def await_all(self) -> None:
        """As `barrier`, for workers that may arrive later than a collective may last."""
        with self._collective():
            self._host.await_all()

    def check_received(self) -> None:
        """Block until the device has received all data. Raises PeerLost if they may be invalid because the group was
        closed meanwhile."""
        self._on_device.wait()
        self.check_open()

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
            try:
                self._on_device.abort()
            except TimeoutError as error:
                end_as_lost_peer(str(error))

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
        return self._on_device if on_device else self._host


def release_later(*things: object) -> None:
    """Drop references in a background thread: groups and reader processes take time to close."""
    threading.Thread(target=_release, args=(list(things),), name="release", daemon=True).start()


def _release(things: list[object]) -> None:
    time.sleep(_RELEASE_DELAY_S)
    for thing in things:
        if isinstance(thing, Group):  # a traceback may still refer to it
            thing.release()
    things.clear()
