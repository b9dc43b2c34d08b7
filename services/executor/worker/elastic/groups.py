"""A group of connected workers: collectives over NCCL for tensors on GPUs and over gloo for the rest.

A process holds several groups at a time, since a worker switches generations while it trains. torch's default group is
one for the whole process, so these groups are not registered with torch. They only move bytes, except `all_reduce`.
Losses of peers are in peer_loss.py.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to make a group that is not the whole process's)

import pickle
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.full_mesh import connect_all
from elasticflow.services.executor.worker.elastic.peer_loss import (
    PeerLost,
    ThreadAbandoned,
    raising_peer_lost,
)
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.elastic.tcp_connections import connections, shut_down

_TRANSFER_BYTES = 250 << 20  # of coalesced small tensors
_RELEASE_DELAY_S = 1.0  # until the training thread holds no reference: the last holder waits for the closing


class Transfer(NamedTuple):
    """A tensor to or from a peer. tag: identifies one of several transfers between the same two workers."""

    tensor: torch.Tensor
    peer: int
    tag: int = 0


class Group:
    """One of `size` workers that connect under a name in a store.

    The constructor blocks until all are connected. Raises RendezvousAborted once `aborted` is set.
    """

    def __init__(
        self,
        store: dist.Store,
        *,
        generation: int,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        aborted: threading.Event | None = None,
    ) -> None:
        self.generation, self.rank, self.size = generation, rank, size
        self._state = threading.Lock()
        self._closed = self._is_waiting = self._is_abandoned = False
        self._unfinished: dict[torch.futures.Future[torch.Tensor], torch.Tensor] = {}  # sums
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        aborted = aborted or threading.Event()
        kinds = dist.ProcessGroup.BackendType
        self.process_group = dist.ProcessGroup(store, rank, size)
        gloo, self._connections = connect_all(store, rank, size, timeout_s=timeout_s, aborted=aborted)
        if aborted.is_set():  # NCCL's set-up cannot be aborted
            raise RendezvousAborted
        self.process_group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
        self.process_group._set_default_backend(kinds.GLOO)
        if device.type == "cuda":
            store.set_timeout(self._timeout)  # NCCL waits in it, until rank 0 has prepared
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
            nccl.eager_connect_single_device(device)  # now, not in the first step
            self.process_group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
            self.process_group._set_default_backend(kinds.NCCL)

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, by rank."""
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        with self.collective():
            self.process_group.allgather([gathered], [mine]).wait()
        return gathered

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The sum, in place, in any order. The result is invalid if `check_received` raises PeerLost afterwards."""
        if self._device.type == "cuda":
            return self.process_group.allreduce([tensor]).get_future().then(lambda summed: summed.value()[0])
        done = torch.futures.Future[torch.Tensor]()
        with self._state:
            if self._closed:  # it would wait forever behind a partly sent transfer
                done.set_result(tensor)
                return done
            # before it begins: another thread may close the group at any time
            self._unfinished[done] = tensor
        sum_of_library = self.process_group.allreduce([tensor]).get_future()
        sum_of_library.add_done_callback(lambda summed: self._summed(summed, done))
        return done

    def _summed(self, summed: Any, done: torch.futures.Future[torch.Tensor]) -> None:
        try:
            summed.value()
        except RuntimeError:
            self.close()
        with self._state:
            tensor = self._unfinished.pop(done, None)
        if tensor is not None:
            done.set_result(tensor)

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        """Overwrite the tensor with the source's."""
        with self.collective():
            self.process_group.broadcast(tensor, source).wait()

    def broadcast_all(self, tensors: list[torch.Tensor], *, source: int) -> None:
        """Overwrite the tensors with the source's, coalesced as DistributedDataParallel does."""
        with self.collective():
            dist._broadcast_coalesced(self.process_group, tensors, _TRANSFER_BYTES, source)

    def broadcast_object(self, value: Any, *, source: int) -> Any:
        """The source's value, pickled: all workers of a job run the same code anyway."""
        content = bytearray(pickle.dumps(value) if self.rank == source else b"")
        size = torch.tensor([len(content)])
        self.broadcast(size, source=source)
        data = torch.frombuffer(content or bytearray(int(size)), dtype=torch.uint8)
        self.broadcast(data, source=source)
        return pickle.loads(data.numpy().tobytes())

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """Run all transfers concurrently, and return when all are done.

        Two workers list their transfers in the same order. All tensors lie on one device.
        """
        sends, receives = list(sends), list(receives)
        # NCCL must start them as one operation, or they deadlock.
        together = any(transfer.tensor.is_cuda for transfer in (*sends, *receives))
        with self.collective():
            if together:
                self.process_group._start_coalescing(self._device)
            works = [self.process_group.send([t.tensor], t.peer, t.tag) for t in sends]
            works += [self.process_group.recv([t.tensor], t.peer, t.tag) for t in receives]
            if together:
                works = [self.process_group._end_coalescing(self._device)]
            for work in works:
                if together:
                    work.wait()
                else:  # gloo has only the timeout of its connections
                    work.wait(self._timeout)

    def barrier(self) -> None:
        """Return when all workers have arrived: closing sockets earlier may cut off a peer's last bytes."""
        self.all_gather(torch.zeros(1))

    def check_received(self) -> None:
        """Raises PeerLost if received data may be invalid because the group was closed meanwhile."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.check_open()

    def check_open(self) -> None:
        """Raises PeerLost if the group was closed."""
        if self._closed:
            raise PeerLost("the group was closed during the computation")

    def close(self) -> None:
        """Shut down the connections after the loss of a peer; callable from any thread.

        Peers that wait for this worker fail, and so learn of the loss. Most waits in this process fail as well. torch
        closes the sockets once no reference to the group is left, here or in a forked process.
        """
        with self._state:
            if self._closed:
                return
            self._closed = True
            unfinished, self._unfinished = self._unfinished, {}
        for connection in self._connections & connections():
            shut_down(connection)
        if self._device.type == "cuda":
            self.process_group._get_backend(self._device).abort()
        for done, tensor in unfinished.items():
            done.set_result(tensor)

    def abandon_waiting_thread(self) -> bool:
        """Abandon the thread that still waits in this closed group, for another to continue. False if none waits."""
        with self._state:
            is_newly_abandoned = self._is_waiting and not self._is_abandoned
            self._is_abandoned = self._is_waiting
            return is_newly_abandoned

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Raises PeerLost for a collective that fails in the block, or ThreadAbandoned if the watchdog abandoned it.

        No collective begins in a closed group: it would wait forever behind a partly sent transfer.
        """
        with self._state:
            self.check_open()
            self._is_waiting = True
        try:
            with raising_peer_lost():
                yield
        finally:
            with self._state:
                self._is_waiting = False
            if self._is_abandoned:
                raise ThreadAbandoned

    def release(self) -> None:
        """Drop the reference to torch's group; idempotent. Its threads and sockets end with the last reference."""
        with suppress(AttributeError):
            del self.process_group


def release_later(*things: object) -> None:
    """Drop references in a background thread: groups and reader processes take time to close."""
    threading.Thread(target=_release, args=(list(things),), name="release", daemon=True).start()


def _release(things: list[object]) -> None:
    time.sleep(_RELEASE_DELAY_S)
    for thing in things:
        if isinstance(thing, Group):  # a traceback may still refer to it
            thing.release()
    things.clear()
