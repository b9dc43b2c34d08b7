"""Transports for the tensors of CPU slots, which use gloo otherwise: what GPUs use can be tried without one.

`AsynchronousTransport` behaves as NCCL does: calls return at once, and so do their waits. Data arrive in another
thread, by way of gloo and copies. Later work on them follows on the stream of the simulated device. Neither an abort
nor an error of the library raises anything: they leave NaN, and the reader must ask.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (aborts are guarded as NCCL's are; torch.distributed documents its stores, but does not export them by the letter)

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from benchmarks.engine.simulated_stream import (
    SimulatedStream,
    UnorderedThread,
    follow_in_later_threads,
    follow_in_this_thread,
    on_device,
)
from elasticflow.services.executor.worker.group import groups, nccl_transport
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport, StagedTransport
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Membership, Transfer, Transport

# --- a transport that behaves as NCCL does -------------------------------------------------------------


GARBAGE = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities of what NCCL may do, drawn from the seed for each transport.

    init_hangs: it is given up after its time-out. error: of each call, that the library reports an error instead of
    data. abort_raises, abort_hangs: an abort ends all calls and raises, or ends none and does not return.
    """

    seed: int = 0
    init_hangs: float = 0.0
    error: float = 0.0
    abort_raises: float = 0.0
    abort_hangs: float = 0.0


class _Call:
    """move: moves copies between the workers, and returns those that were received."""

    def __init__(
        self, stream: SimulatedStream, move: Callable[[], Sequence[torch.Tensor]], received: Sequence[torch.Tensor]
    ) -> None:
        self.move, self.received = move, received
        self._stream = stream
        self.ready = stream.reached()  # it moves what the stream has written by then
        self.ended = threading.Event()

    def end(self, arrived: Sequence[torch.Tensor] | None) -> None:
        """End the call. arrived: None for garbage."""
        with on_device():
            for i, tensor in enumerate(self.received):
                if arrived is not None:
                    tensor.copy_(arrived[i])
                elif tensor.is_floating_point():
                    tensor.fill_(GARBAGE)
        self.ended.set()

    def follow(self, used: Sequence[torch.Tensor]) -> None:
        """Later work on these tensors waits for the end; the caller does not."""
        follow_in_this_thread()  # it may not be the one that has begun the call
        self._stream.push(self.ended.wait, used)


class AsynchronousTransport:
    """Has connections of its own, since its calls run beside those on the host. The constructor raises
    RendezvousAborted once `aborted` is set, and PeerLost if it does not connect within timeout_s."""

    def __init__(
        self,
        member: Membership,
        faults: Faults | None = None,
    ) -> None:
        self.error = ""
        self._faults = faults or Faults()
        self._chance = np.random.default_rng(self._faults.seed)
        if self._happens(self._faults.init_hangs):
            _hang_for(member.timeout_s, member.aborted)
        try:
            self._gloo = GlooTransport(member)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error
        self._abort_raises = self._happens(self._faults.abort_raises)
        self._abort_hangs = self._happens(self._faults.abort_hangs)
        self._state = threading.Lock()
        self._is_aborted = False
        self._unended = list[_Call]()
        self._stream = SimulatedStream()
        self._begun = queue.SimpleQueue[_Call | None]()
        UnorderedThread(target=self._run, name="asynchronous-transport", daemon=True).start()

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        def move() -> list[torch.Tensor]:
            sent = [transfer._replace(tensor=transfer.tensor.clone()) for transfer in sends]
            arriving = [transfer._replace(tensor=torch.empty_like(transfer.tensor)) for transfer in receives]
            self._gloo.begin_exchange(sent, arriving)()
            return [transfer.tensor for transfer in arriving]

        call = self._begin(move, [transfer.tensor for transfer in receives])
        return lambda: call.follow([transfer.tensor for transfer in (*sends, *receives)])

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        self._begin(lambda: [self._gloo.all_reduce(tensor.clone()).wait()], [tensor]).follow([tensor])
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(tensor)
        return done

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        def move() -> list[torch.Tensor]:
            copies = [tensor.clone() for tensor in tensors]
            self._gloo.broadcast(copies, source=source)
            return copies

        self._begin(move, tensors).follow(tensors)

    def wait(self) -> None:
        self._stream.synchronize()

    def abort(self) -> None:
        """Abort as NCCL's transport does. The host's connections stay."""
        nccl_transport.abort_or_end(self._abort)

    def release(self) -> None:
        self._begun.put(None)
        self._stream.close()
        self._gloo.release()

    def _abort(self) -> None:
        if self._abort_hangs:
            threading.Event().wait()
        self._end_all()
        self._gloo.abort()
        if self._abort_raises:
            raise RuntimeError("NCCL error: remote process exited or there was a network error")

    def _begin(self, move: Callable[[], Sequence[torch.Tensor]], received: Sequence[torch.Tensor]) -> _Call:
        follow_in_this_thread()
        call = _Call(self._stream, move, received)
        with self._state:
            if self._is_aborted:
                call.end(None)
            else:
                self._unended.append(call)
                self._begun.put(call)
        return call

    def _run(self) -> None:
        while (call := self._begun.get()) is not None:
            call.ready.wait()
            if self._happens(self._faults.error):
                self._fail("NCCL reported REMOTE_ERROR")
            try:
                with on_device():
                    arrived = None if self._is_aborted else call.move()
                lost = self._gloo.error  # which a sum does not raise
            except RuntimeError as error:
                arrived, lost = None, str(error)
            if lost:
                self._fail(f"the library reported: {lost}")
            with self._state:
                if call in self._unended:  # no abort has ended it
                    self._unended.remove(call)
                    call.end(arrived)

    def _fail(self, reason: str) -> None:
        """The error is known before the garbage that it leaves is."""
        self.error = self.error or reason
        self._end_all()
        self._gloo.abort()

    def _end_all(self) -> None:
        with self._state:
            self._is_aborted = True
            unended, self._unended = self._unended, []
            for call in unended:
                call.end(None)

    def _happens(self, probability: float) -> bool:
        return bool(self._chance.random() < probability)


def _hang_for(timeout_s: float, aborted: threading.Event) -> None:
    """Hang as a set-up that is given up. Raises PeerLost, RendezvousAborted."""
    given_up = threading.Event()
    try:
        nccl_transport.complete_in_time(lambda: _wait_for(given_up), within_s=timeout_s, aborted=aborted)
    except TimeoutError as error:
        raise PeerLost(str(error)) from error
    finally:
        given_up.set()


def _wait_for(event: threading.Event) -> None:
    event.wait()


# --- transports by name --------------------------------------------------------------------------------


class TransportName(StrEnum):
    """asynchronous: like NCCL. staged: as between workers that share a GPU."""

    GLOO = "gloo"
    ASYNCHRONOUS = "asynchronous"
    STAGED = "staged"


def connecting(name: str, faults: Faults | None = None) -> Callable[..., Transport]:
    """Return a replacement of the engine's `device_transport`, for any identities. faults: of the asynchronous one."""

    def connect(
        gloo: GlooTransport,
        member: Membership,
        *,
        device: torch.device,
        **_: object,
    ) -> Transport:
        match TransportName(name):
            case TransportName.GLOO:
                return gloo
            case TransportName.ASYNCHRONOUS:
                return AsynchronousTransport(member, faults)
            case TransportName.STAGED:
                return StagedTransport(gloo, device)

    return connect


def use_in_this_process(name: str) -> None:
    """Use this transport for all groups of this worker from now on. The engine's threads outlive a generation, so they
    follow the order of a simulated stream from their beginning."""
    if name == TransportName.ASYNCHRONOUS:
        follow_in_later_threads()
    if name != TransportName.GLOO:
        groups.device_transport = connecting(name)  # pyright: ignore[reportAttributeAccessIssue]
