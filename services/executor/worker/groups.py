"""Workers that are connected to each other, and how the loss of one shows.

Groups are built beside each other and known to nobody else: torch's own default group is one for a whole process, and
a worker goes from one generation into the next while it trains. NCCL carries what lies on GPUs and gloo the rest.
Everything here only moves bytes, but for `all_reduce`.

gloo tells at once that a peer is gone, with two exceptions: a machine that vanishes without a word, and a transfer of
which a part has been sent, which gloo forgets to tell of it. NCCL may wait inside the GPU. What frees those who wait in
vain is `interruption`.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to make a group that is not the whole process's)

import pickle
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist

from services.executor.worker.connections import connections, shut_down
from services.executor.worker.meeting_store import GivenUp
from services.executor.worker.mesh import connect_all
from shared.errors import Retry

_TRANSFER_BYTES = 250 << 20  # of small tensors together
_RETIREMENT_S = 1.0  # until the training has let go: whoever is last waits for the closing


@dataclass(eq=False)
class PeerLost(Retry):
    """Another worker of the generation is gone: who survives goes on in the next one."""

    reason: str

    SENTENCE: ClassVar[str] = "{reason}"


class LeftBehind(BaseException):
    """Raised in a thread that has waited in vain, when it comes back after all: another one has gone on in its place,
    and it may touch nothing any more."""


class Transfer(NamedTuple):
    """A tensor on its way to or from a peer. tag: tells it from others between the same two."""

    tensor: torch.Tensor
    peer: int
    tag: int = 0


class Group:
    """One of `size` workers that have met under a name in a store, to be in this generation or to go over to it. Blocks
    until all are connected, or the meeting is given up."""

    def __init__(
        self,
        store: dist.Store,
        *,
        generation: int,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        given_up: threading.Event | None = None,
    ) -> None:
        self.generation, self.rank, self.size = generation, rank, size
        self._state = threading.Lock()
        self._closed = self._waits = self._is_left = False
        self._unfinished: dict[torch.futures.Future[torch.Tensor], torch.Tensor] = {}  # sums
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        given_up = given_up or threading.Event()
        kinds = dist.ProcessGroup.BackendType
        self.process_group = dist.ProcessGroup(store, rank, size)
        gloo, self._connections = connect_all(store, rank, size, timeout_s=timeout_s, given_up=given_up)
        if given_up.is_set():  # NCCL could not be told
            raise GivenUp
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
        """Everybody's, by rank."""
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        with self.waiting():
            self.process_group.allgather([everyone], [mine]).wait()
        return everyone

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """The sum, in place, in whatever order is fast. It is no sum if `check` says afterwards that a peer is gone."""
        if self._device.type == "cuda":
            return self.process_group.allreduce([tensor]).get_future().then(lambda summed: summed.value()[0])
        done = torch.futures.Future[torch.Tensor]()
        with self._state:
            if self._closed:  # it would wait behind one of which a part has been sent, for ever
                done.set_result(tensor)
                return done
            self._unfinished[done] = tensor  # before it begins: the group may be closed at any moment
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
        """The source's, in place."""
        with self.waiting():
            self.process_group.broadcast(tensor, source).wait()

    def broadcast_all(self, tensors: list[torch.Tensor], *, source: int) -> None:
        """The source's, in place, in as few transfers as DistributedDataParallel makes of them."""
        with self.waiting():
            dist._broadcast_coalesced(self.process_group, tensors, _TRANSFER_BYTES, source)

    def broadcast_object(self, value: Any, *, source: int) -> Any:
        """The source's value, which is pickled: workers of a job run the same code anyway."""
        content = bytearray(pickle.dumps(value) if self.rank == source else b"")
        size = torch.tensor([len(content)])
        self.broadcast(size, source=source)
        data = torch.frombuffer(content or bytearray(int(size)), dtype=torch.uint8)
        self.broadcast(data, source=source)
        return pickle.loads(data.numpy().tobytes())

    def exchange(self, sends: Iterable[Transfer], receives: Iterable[Transfer]) -> None:
        """All at once; return when all have come and gone. Between two workers, in the same order on both. All tensors
        lie on one device."""
        sends, receives = list(sends), list(receives)
        # NCCL starts them as one, or they wait for each other.
        together = any(transfer.tensor.is_cuda for transfer in (*sends, *receives))
        with self.waiting():
            if together:
                self.process_group._start_coalescing(self._device)
            works = [self.process_group.send([t.tensor], t.peer, t.tag) for t in sends]
            works += [self.process_group.recv([t.tensor], t.peer, t.tag) for t in receives]
            if together:
                works = [self.process_group._end_coalescing(self._device)]
            for work in works:
                if together:
                    work.wait()
                else:  # gloo knows none but the one for its connections
                    work.wait(self._timeout)

    def part(self) -> None:
        """Return when everyone knows of the end: who closes its sockets first may cut off the last words."""
        self.all_gather(torch.zeros(1))

    def check(self) -> None:
        """Raises PeerLost if what was received may be none: the group was closed meanwhile."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        self.check_open()

    def check_open(self) -> None:
        """Raises PeerLost if it was closed: what is computed for the others is in vain."""
        if self._closed:
            raise PeerLost("the workers were parted while they computed")

    def close(self) -> None:
        """After a peer was lost, from any thread: a third one may wait for this worker, and learns of the loss only by
        this; and whoever waits here for the lost one comes back, mostly.

        torch closes its sockets when nobody holds the group any more, here or in a process that has inherited them.
        """
        with self._state:
            if self._closed:
                return
            self._closed = True
            in_vain, self._unfinished = self._unfinished, {}
        for connection in self._connections & connections():
            shut_down(connection)
        if self._device.type == "cuda":
            self.process_group._get_backend(self._device).abort()
        for done, tensor in in_vain.items():
            done.set_result(tensor)

    def leave_behind(self) -> bool:
        """Give up the thread that still waits in this group, which was closed; another one may take its place. False if
        none waits."""
        with self._state:
            given_up = self._waits and not self._is_left
            self._is_left = self._waits
            return given_up

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For peers: a collective that fails in here raises PeerLost, or LeftBehind if it took too long to. None begins
        in a group that was closed: it would wait behind a transfer that never ends."""
        with self._state:
            self.check_open()
            self._waits = True
        try:
            with noticing_lost_peers():
                yield
        finally:
            with self._state:
                self._waits = False
            if self._is_left:
                raise LeftBehind

    def release(self) -> None:
        """Let go of it, once or more; its threads, connections and port, too, go when nothing else holds it."""
        with suppress(AttributeError):
            del self.process_group


def retire(*things: object) -> None:
    """Let go of what nobody uses any more and what takes a while to close: groups, processes that read data."""
    threading.Thread(target=_let_go, args=(list(things),), name="retired", daemon=True).start()


def _let_go(things: list[object]) -> None:
    time.sleep(_RETIREMENT_S)
    for thing in things:
        if isinstance(thing, Group):  # an error's traceback may have an eye on it still, and does not keep it
            thing.release()
    things.clear()


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
