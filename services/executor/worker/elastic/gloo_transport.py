"""Collectives of tensors on the host, over gloo. They are complete on return, or raise the library's errors."""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to make a group that is not the whole process's)

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.full_mesh import connect_all
from elasticflow.services.executor.worker.elastic.tcp_connections import Connection, connections, shut_down
from elasticflow.services.executor.worker.elastic.transport import Transfer, broadcast_coalesced

_NO_LIMIT = timedelta(days=7)


class GlooTransport:
    """The constructor blocks until all workers are connected. Raises RendezvousAborted once `aborted` is set."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        aborted: threading.Event,
        secret: str = "",
    ) -> None:
        self._rank, self._size = rank, size
        self._timeout = timedelta(seconds=timeout_s)
        self.process_group = dist.ProcessGroup(store, rank, size)
        gloo, own_connections = connect_all(store, rank, size, timeout_s=timeout_s, aborted=aborted, secret=secret)
        self._sums = _Sums(own_connections)
        self.process_group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self.process_group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    @property
    def error(self) -> str:
        """A sum failed, which its caller cannot see."""
        return "the group's connections were closed" if self._sums.is_aborted else ""

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, by rank."""
        gathered = [torch.empty_like(mine) for _ in range(self._size)]
        self.process_group.allgather([gathered], [mine]).wait()
        return gathered

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        return self._begin_exchange(sends, receives, self._timeout)

    def await_all(self) -> None:
        """Return when all workers have called it. Its wait has no limit: the loss of a peer ends it."""
        peers = [peer for peer in range(self._size) if peer != self._rank]
        sends = [Transfer(torch.zeros(1), peer) for peer in peers]
        self._begin_exchange(sends, [Transfer(torch.zeros(1), peer) for peer in peers], _NO_LIMIT)()

    def _begin_exchange(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], within: timedelta
    ) -> Callable[[], None]:
        works = [self.process_group.send([t.tensor], t.peer, t.tag) for t in sends]
        works += [self.process_group.recv([t.tensor], t.peer, t.tag) for t in receives]

        def wait() -> None:
            for work in works:
                work.wait(within)  # gloo has only the timeout of its connections

        return wait

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """It ends with an abort, and is invalid then."""
        done, sums = self._sums.begin(tensor), self._sums
        if not done.done():
            sum_of_library = self.process_group.allreduce([tensor]).get_future()
            sum_of_library.add_done_callback(lambda summed: sums.end(summed, done))
        return done

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        broadcast_coalesced(self.process_group, tensors, source)

    def wait(self) -> None:
        """All calls but sums are complete on return, and callers wait for the future of a sum."""

    def abort(self) -> None:
        """Shut down the connections. Peers that wait for this worker fail, and most waits in this process."""
        self._sums.abort()

    def release(self) -> None:
        with suppress(AttributeError):
            del self.process_group


class _Sums:
    """The unfinished sums of a group, and its connections.

    gloo's thread keeps this until a sum has ended. It must not keep the process group: if it dropped the last
    reference, the destructor would wait for its own thread, and that ends the process.
    """

    def __init__(self, own_connections: set[Connection]) -> None:
        self.is_aborted = False
        self._connections = own_connections
        self._state = threading.Lock()
        self._unfinished: dict[torch.futures.Future[torch.Tensor], torch.Tensor] = {}

    def begin(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Done at once in an aborted group: the sum would wait forever behind a partly sent transfer."""
        done = torch.futures.Future[torch.Tensor]()
        with self._state:
            if self.is_aborted:
                done.set_result(tensor)
            else:  # before it begins: another thread may close the group at any time
                self._unfinished[done] = tensor
        return done

    def end(self, summed: Any, done: torch.futures.Future[torch.Tensor]) -> None:
        try:
            summed.value()
        except RuntimeError:
            self.abort()
        with self._state:
            tensor = self._unfinished.pop(done, None)
        if tensor is not None:
            done.set_result(tensor)

    def abort(self) -> None:
        with self._state:
            if self.is_aborted:
                return
            self.is_aborted = True
            unfinished, self._unfinished = self._unfinished, {}
        for connection in self._connections & connections():
            shut_down(connection)
        for done, tensor in unfinished.items():
            done.set_result(tensor)
