"""Workers that are connected to each other, and how the loss of one shows.

Groups are built beside each other and known to nobody else: torch's own default group is one for a whole process, and
a worker goes from one generation into the next while it trains. NCCL carries what lies on GPUs and gloo the rest.
Everything here only moves bytes, but for `all_reduce`.

gloo tells at once that a peer is gone. NCCL may wait for it inside the GPU, where nothing here can hear of it: such a
worker is ended by its executor, when the ledger says that the generation is broken, or by NCCL after the timeout.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to make a group that is not the whole process's)

import os
import pickle
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist

from services.executor.worker.meeting_store import MeetingStore
from shared.errors import Retry

_RETIREMENT_S = 1.0  # until the training has let go: whoever is last waits for the closing


@dataclass(eq=False)
class PeerLost(Retry):
    """Another worker of the generation is gone: who survives goes on in the next one."""

    reason: str

    SENTENCE: ClassVar[str] = "{reason}"


class Transfer(NamedTuple):
    """A tensor on its way to or from a peer. tag: tells it from others between the same two."""

    tensor: torch.Tensor
    peer: int
    tag: int = 0


class Group:
    """One of `size` workers that have met under a name in a store. Blocks until all are connected, or the meeting is
    given up."""

    def __init__(
        self,
        store: dist.Store,
        *,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        given_up: threading.Event | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._device = device
        timeout = timedelta(seconds=timeout_s)
        kinds = dist.ProcessGroup.BackendType
        self.process_group = dist.ProcessGroup(store, rank, size)
        others = _connections()
        patient = MeetingStore(
            dist.PrefixStore("gloo", store), given_up or threading.Event(), wait_s=timeout_s
        )
        gloo = dist.ProcessGroupGloo(patient, rank, size, timeout)
        self._connections = _connections() - others
        self.process_group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
        self.process_group._set_default_backend(kinds.GLOO)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
            nccl.eager_connect_single_device(device)  # now, not in the first step
            self.process_group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
            self.process_group._set_default_backend(kinds.NCCL)

    def all_gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Everybody's, by rank."""
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        with noticing_lost_peers():
            self.process_group.allgather([everyone], [mine]).wait()
        return everyone

    def all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """The sum, in place, in whatever order is fast."""
        return self.process_group.allreduce([tensor])

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> None:
        """The source's, in place."""
        with noticing_lost_peers():
            self.process_group.broadcast(tensor, source).wait()

    def broadcast_object(self, value: Any, *, source: int) -> Any:
        """The source's value, which is pickled: workers of a job run the same code anyway."""
        content = bytearray(pickle.dumps(value) if self.rank == source else b"")
        size = torch.tensor([len(content)])
        self.broadcast(size, source=source)
        data = torch.frombuffer(content or bytearray(int(size)), dtype=torch.uint8)
        self.broadcast(data, source=source)
        return pickle.loads(data.numpy().tobytes())

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """All at once; return when all have come and gone. Between two workers, in the same order on both."""
        together = self._device.type == "cuda"  # NCCL starts them as one, or they wait for each other
        with noticing_lost_peers():
            if together:
                self.process_group._start_coalescing(self._device)
            works = [self.process_group.send([t.tensor], t.peer, t.tag) for t in sends]
            works += [self.process_group.recv([t.tensor], t.peer, t.tag) for t in receives]
            if together:
                works = [self.process_group._end_coalescing(self._device)]
            for work in works:
                work.wait()

    def part(self) -> None:
        """Return when everyone knows of the end: who closes its sockets first may cut off the last words."""
        self.all_gather(torch.zeros(1))

    def close(self) -> None:
        """After a peer was lost: a third one may wait for this worker, and learns of the loss only by this.

        torch closes its sockets when nobody holds the group any more, here or in a process that has inherited them.
        """
        for descriptor, _ in self._connections & _connections():
            _shut_down(descriptor)
        if self._device.type == "cuda":
            self.process_group._get_backend(self._device).abort()

    def release(self) -> None:
        """Let go of it; its threads, connections and port, too, go when nothing else holds it."""
        del self.process_group


def retire(*things: object) -> None:
    """Let go of what nobody uses any more and what takes a while to close: groups, processes that read data."""
    threading.Thread(target=_let_go, args=(list(things),), name="retired", daemon=True).start()


def _let_go(things: list[object]) -> None:
    time.sleep(_RETIREMENT_S)
    for thing in things:
        if isinstance(
            thing, Group
        ):  # whoever has still an eye on it, an error's traceback e.g., does not keep it
            thing.release()
    things.clear()


def _connections() -> set[tuple[int, int]]:
    """TCP sockets of this process that are connected: (file descriptor, inode)."""
    found: set[tuple[int, int]] = set()
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed by another thread, or no socket
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode) and _is_connection(int(name)):
                found.add((int(name), status.st_ino))
    return found


def _is_connection(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        listens = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return copy.family in (socket.AF_INET, socket.AF_INET6) and not listens


def _shut_down(descriptor: int) -> None:
    # gloo may have closed it meanwhile
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        copy.shutdown(socket.SHUT_RDWR)


def is_communication_error(error: BaseException) -> bool:
    """Whether a collective failed. gloo has no exception type of its own, only its place in the text."""
    return isinstance(error, dist.DistError) or "third_party/gloo" in str(error)


@contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """Raises PeerLost for a collective that failed in here."""
    try:
        yield
    except RuntimeError as error:
        if is_communication_error(error):
            raise PeerLost(f"a collective failed: {error}") from error
        raise
