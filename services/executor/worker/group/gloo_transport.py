"""Collectives of tensors on the host, over gloo. They are complete on return, or raise the library's errors."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to make a group that is not the whole process's)

import hmac
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from secrets import token_bytes
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.group.tcp_connections import (
    NONCE_BYTES,
    NotAuthentic,
    TcpConnection,
    close_to_others,
    connections,
    connections_at,
    derived,
    proof,
    shut_down,
    warn_unconnected,
)
from elasticflow.services.executor.worker.group.transport import Membership, Transfer, broadcast_coalesced

# --- full mesh -----------------------------------------------------------------------------------------
# Connects gloo's full mesh between all workers of a rendezvous, in attempts of growing length.
#
# gloo waits for a connection inside the library, where nothing can interrupt it. If a peer died then, a worker would
# keep threads, sockets and ports for minutes, and its other peers would wait for it. So the first attempt lasts one
# second, and each further one lasts four times as long. Before each attempt all workers wait for each other in the
# store, where the rendezvous can be aborted. A worker that began alone would fail before the others begin, and so
# would they after it.

_FIRST_ATTEMPT_S, _GROWTH = 1.0, 4
_GLOO_TIMEOUT_FACTOR = 5  # gloo waits for a first connection this many times its timeout
_CONNECTED, _FAILED = b"connected", b"failed"


class Mesh(NamedTuple):
    """connections: those of this process that belong to this gloo group only."""

    gloo: dist.ProcessGroupGloo
    connections: set[TcpConnection]


class _RecordingStore(RendezvousStore):
    """values_read: all values, among them the listening address of each peer: one end of each connection.

    values_written: among them that of this worker.
    """

    values_read = values_written = b""

    def set(self, key: str, value: str | bytes) -> None:
        super().set(key, value)
        self.values_written += value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        value = super().get(key)
        self.values_read += value
        return value

    def await_all(self, size: int) -> None:
        """Return when this many workers have called it."""
        if self.add("arrived", 1) == size:
            self.set("all", "arrived")
        self.wait(["all"])


def connect_all(member: Membership) -> Mesh:
    """A collective of all members: all of them connect, or none.

    Raises RendezvousAborted, and RuntimeError (DistError is the store's).
    """
    rank, size, timeout_s, aborted = member.rank, member.size, member.timeout_s, member.aborted
    deadline_s, attempt_s = time.monotonic() + timeout_s, _FIRST_ATTEMPT_S
    while True:
        began_s = time.monotonic()
        wait_s = deadline_s - began_s
        name = f"gloo-{attempt_s:g}"
        of_attempt = derived(member.secret, name)
        recording = _RecordingStore(dist.PrefixStore(name, member.store), aborted, wait_s=wait_s, secret=of_attempt)
        recording.await_all(size)
        within_s = min(attempt_s, wait_s)
        try:
            gloo = dist.ProcessGroupGloo(recording, rank, size, timedelta(seconds=within_s / _GLOO_TIMEOUT_FACTOR))
            if of_attempt:
                _prove(gloo, of_attempt, rank, size, within_s=within_s)
        except dist.DistError:  # the store's: its next reply may belong to an earlier request
            raise
        except RuntimeError as error:  # also if a peer's attempt failed and it closed its connections
            if aborted.is_set():
                raise
            warn_unconnected("gloo", str(error))
            if time.monotonic() > deadline_s:
                raise
            recording.set("outcome", _FAILED.decode())
            if isinstance(error, NotAuthentic):  # it failed at once, and may fail again
                aborted.wait(max(began_s + within_s - time.monotonic(), 0.0))
        else:
            if recording.add("connected", 1) == size:
                recording.set("outcome", _CONNECTED.decode())
            if recording.get("outcome") == _CONNECTED:
                gloo._set_default_timeout(timedelta(seconds=timeout_s))
                close_to_others(recording.values_written)  # gloo keeps strangers' connections until it aborts
                return Mesh(gloo, connections_at(recording.values_read))
        attempt_s *= _GROWTH


def _prove(gloo: Any, secret: str, rank: int, size: int, *, within_s: float) -> None:
    """Each two workers prove to each other, on their connection, that they know the secret. Raises NotAuthentic.

    gloo takes the first connections that come: they may be of another process.
    """
    mine = {peer: token_bytes(NONCE_BYTES) for peer in range(size) if peer != rank}
    theirs = _swapped(gloo, mine, within_s)
    proofs = _swapped(gloo, {peer: proof(secret, rank, peer, nonce) for peer, nonce in theirs.items()}, within_s)
    for peer, nonce in mine.items():
        if not hmac.compare_digest(proofs[peer], proof(secret, peer, rank, nonce)):
            raise NotAuthentic(f"rank {peer} does not know the secret of this generation")


def _swapped(gloo: Any, mine: Mapping[int, bytes], within_s: float) -> dict[int, bytes]:
    """Receive equally many bytes from each peer, for those of this worker."""
    received = {peer: torch.empty(len(sent), dtype=torch.uint8) for peer, sent in mine.items()}
    works = [gloo.send([torch.frombuffer(bytearray(sent), dtype=torch.uint8)], peer, 0) for peer, sent in mine.items()]
    works += [gloo.recv([tensor], peer, 0) for peer, tensor in received.items()]
    for work in works:
        work.wait(timedelta(seconds=within_s))
    return {peer: tensor.numpy().tobytes() for peer, tensor in received.items()}


# --- gloo transport ------------------------------------------------------------------------------------

_NO_LIMIT = timedelta(days=7)


class GlooTransport:
    """The constructor blocks until all workers are connected. Raises RendezvousAborted.

    A wait for a single transfer passes the member's timeout.
    """

    def __init__(self, member: Membership) -> None:
        self._rank, self._size = member.rank, member.size
        self._timeout = timedelta(seconds=member.timeout_s)
        self.process_group = dist.ProcessGroup(member.store, member.rank, member.size)
        gloo, own_connections = connect_all(member)
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

    def __init__(self, own_connections: set[TcpConnection]) -> None:
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


# --- staged transport ----------------------------------------------------------------------------------
# Collectives of tensors on a GPU by way of the host: copies through pinned memory, and gloo between the workers.
#
# NCCL refuses two workers on one GPU, so workers that share one need this. Sums have the same bits as over NCCL where
# the engine adds them itself.


class StagedTransport:
    """Exchanges are complete after their wait, other calls on return. They raise gloo's errors."""

    def __init__(self, gloo: GlooTransport, device: torch.device) -> None:
        self._gloo, self._device = gloo, device

    @property
    def error(self) -> str:
        return self._gloo.error

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        staged = self._on_host([transfer.tensor for transfer in sends])
        received = [self._host_memory(transfer.tensor) for transfer in receives]
        wait_for_gloo = self._gloo.begin_exchange(_with_tensors(sends, staged), _with_tensors(receives, received))

        def wait() -> None:
            wait_for_gloo()
            self._copy_back([transfer.tensor for transfer in receives], received)

        return wait

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        staged = self._on_host([tensor])
        self._gloo.all_reduce(staged[0]).wait()
        self._copy_back([tensor], staged)
        done = torch.futures.Future[torch.Tensor](devices=[] if self._device.type == "cpu" else [self._device])
        done.set_result(tensor)
        return done

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        staged = self._on_host(tensors)
        self._gloo.broadcast(staged, source=source)
        self._copy_back(tensors, staged)

    def wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def abort(self) -> None:
        self._gloo.abort()

    def release(self) -> None:
        """The gloo group belongs to the caller."""

    def _on_host(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies; complete on return, because gloo reads them without the GPU's order."""
        copies = [self._host_memory(tensor).copy_(tensor, non_blocking=True) for tensor in tensors]
        self.wait()
        return copies

    def _copy_back(self, onto: Sequence[torch.Tensor], staged: Sequence[torch.Tensor]) -> None:
        """Complete on return: the next call may reuse the host's memory."""
        with torch.no_grad():
            for tensor, copy in zip(onto, staged, strict=True):
                tensor.copy_(copy, non_blocking=True)
        self.wait()

    def _host_memory(self, like: torch.Tensor) -> torch.Tensor:
        """Pinned memory, which torch keeps for the next call."""
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self._device.type == "cuda")


def _with_tensors(transfers: Sequence[Transfer], tensors: Sequence[torch.Tensor]) -> list[Transfer]:
    return [transfer._replace(tensor=tensor) for transfer, tensor in zip(transfers, tensors, strict=True)]
