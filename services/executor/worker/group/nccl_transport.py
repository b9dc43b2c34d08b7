"""Collectives of tensors on GPUs, over NCCL: begun by the CPU, done by the GPU, ended by an abort without an error.

torch's own handling of NCCL's errors ends the process about a minute after a peer was lost. Survivors must continue, so
it is off for this group only, and a thread asks for errors instead. A script's own groups keep torch's settings.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to make a group that is not the whole process's)

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from elasticflow.services.executor.worker.group.peer_loss import end_as_lost_peer
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.group.transport import (
    Membership,
    Transfer,
    broadcast_coalesced,
    in_known_type,
)
from elasticflow.shared.runtime.process.logs import log

# Read by the constructor of torch's group. 0: its threads neither end the process nor wait before they report.
_NO_OWN_ERROR_HANDLING: Mapping[str, str] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
_POLL_S = 0.1
_ABORT_S = 5.0
_MAX_CHANNELS = 16  # NCCL keeps buffers for each; two groups exist during a resize
_environment = threading.Lock()  # two groups are never constructed at once, so each restores what it found


class NcclTransport:
    """The constructor returns when all workers are connected. Raises RendezvousAborted, TimeoutError if NCCL does not
    connect within the member's time, and NCCL's DistError.

    collective_timeout_s: of NCCL's calls afterwards; None: as long.
    """

    def __init__(self, member: Membership, *, device: torch.device, collective_timeout_s: float | None = None) -> None:
        store, rank, size, timeout_s = member.store, member.rank, member.size, member.timeout_s
        self._device = device
        self._has_worked = False  # for its user: the GPU may wait for a call of this group
        self._ended = threading.Event()
        self._error = ""
        store.set_timeout(timedelta(seconds=timeout_s))  # NCCL waits in it, until rank 0 has prepared
        self.process_group = dist.ProcessGroup(store, rank, size)
        backend = dist.ProcessGroup.BackendType.NCCL
        with torch_settings(_NO_OWN_ERROR_HANDLING):
            options = _options(collective_timeout_s or timeout_s)
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)
        self.process_group._register_backend(torch.device("cuda"), backend, self._nccl)
        self.process_group._set_default_backend(backend)
        try:
            complete_in_time(lambda: self._connect(rank, size), within_s=timeout_s, aborted=member.aborted)
        except BaseException:
            self.abort()
            raise
        threading.Thread(target=self._watch, args=(self._nccl,), name="nccl-errors", daemon=True).start()

    def _connect(self, rank: int, size: int) -> None:
        """All that NCCL would else connect in the first steps: also each two workers, by a number to and from each."""
        self._nccl.eager_connect_single_device(self._device)
        peers = [peer for peer in range(size) if peer != rank]
        if not peers:
            return
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # beside the work of another group
            sent, received = (torch.zeros(size, device=self._device) for _ in range(2))
            self._begin_exchange(
                [Transfer(sent[peer : peer + 1], peer) for peer in peers],
                [Transfer(received[peer : peer + 1], peer) for peer in peers],
            )()
            self.wait()

    @property
    def error(self) -> str:
        return self._error

    def begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        """One operation: begun one by one they deadlock. Until its wait, the GPU computes beside it."""
        self._has_worked = True
        return self._begin_exchange(sends, receives)

    def _begin_exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> Callable[[], None]:
        if not sends and not receives:
            return lambda: None
        work: Any = None
        self.process_group._start_coalescing(self._device)
        try:
            for transfer in sends:
                self.process_group.send([in_known_type(transfer.tensor)], transfer.peer, transfer.tag)
            for transfer in receives:
                self.process_group.recv([in_known_type(transfer.tensor)], transfer.peer, transfer.tag)
        finally:  # else all later operations of this thread would wait for its end
            work = self.process_group._end_coalescing(self._device)
        return lambda: work.wait()

    def all_reduce(self, tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        self._has_worked = True
        return self.process_group.allreduce([tensor]).get_future().then(lambda summed: summed.value()[0])

    def broadcast(self, tensors: list[torch.Tensor], *, source: int) -> None:
        self._has_worked = True
        broadcast_coalesced(self.process_group, tensors, source)

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).synchronize()

    def abort(self) -> None:
        """Do what `abort_or_end` does; in the background if the group has not worked yet, since nothing waits for it.

        A set-up holds the lock that its abort needs, until torch gives it up. Its worker may train in another group.
        """
        self._ended.set()
        abort = self._nccl.abort
        if self._has_worked:
            abort_or_end(abort)
        else:
            threading.Thread(target=_abort, args=(abort,), name="nccl-abort", daemon=True).start()

    def release(self) -> None:
        self._ended.set()
        with suppress(AttributeError):
            del self.process_group, self._nccl

    def _watch(self, nccl: Any) -> None:
        """Abort after an error that NCCL reports, so that no wait for the GPU lasts."""
        while not self._ended.wait(_POLL_S):
            reported = nccl.get_error()
            if reported != ErrorType.SUCCESS:
                self._error = f"NCCL reported {reported.name}"
                log.warning("nccl_error", error=reported.name)
                self.abort()


@contextmanager
def torch_settings(settings: Mapping[str, str]) -> Iterator[None]:
    """Set these variables of the environment within the block, and the earlier ones after it."""
    with _environment:
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def complete_in_time(act: Callable[[], None], *, within_s: float, aborted: threading.Event | None = None) -> None:
    """Act in a thread of its own, which is left alone once it takes too long, or once `aborted` is set.

    Raises the error of the act, TimeoutError, or RendezvousAborted.
    """
    ended, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)
        ended.set()

    threading.Thread(target=run, name="nccl", daemon=True).start()
    deadline_s = time.monotonic() + within_s
    while not ended.wait(_POLL_S):
        if aborted is not None and aborted.is_set():
            raise RendezvousAborted
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"NCCL did not answer within {within_s:.0f} s")
    if failed:
        raise failed[0]


def _options(timeout_s: float) -> Any:
    """NCCL calls that return at once: a blocking one cannot be given up, and may wait for a lost peer forever.

    timeout_s: of all calls of the group, also of those in which NCCL still connects after the set-up. NCCL's own
    variables of the environment, such as NCCL_MAX_CTAS, take precedence over the configuration.
    """
    os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", f"{timeout_s:.0f}")  # read once in a process
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    options.config.blocking = 0
    if hasattr(options.config, "max_ctas"):  # not in all builds of torch
        options.config.max_ctas = _MAX_CHANNELS
    return options


def abort_or_end(abort: Callable[[], None]) -> None:
    """End this process as a lost peer if the abort does not return: then no wait for the GPU ends either."""
    try:
        complete_in_time(lambda: _abort(abort), within_s=_ABORT_S)
    except TimeoutError as error:
        end_as_lost_peer(f"an abort of its communicator: {error}")


def _abort(abort: Callable[[], None]) -> None:
    """An abort that raises has ended all calls."""
    try:
        abort()
    except RuntimeError as error:
        log.warning("nccl_abort_failed", reason=str(error))
