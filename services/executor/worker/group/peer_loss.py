"""The loss of a peer: how a collective reports it, and the watchdog for losses that only the ledger knows.

gloo reports a closed connection at once, with two exceptions: a machine that vanishes without closing it, and a
transfer that was partly sent. For these the executor sends `PeersLost`, and the watchdog closes the groups. A thread
stuck in a partly sent transfer stays stuck until the group's timeout, so the watchdog abandons it. Another thread
continues from the step boundary, with the same state.
"""

# pyright: reportPrivateImportUsage=false
# (torch.distributed documents its errors, but does not export all of them)

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Protocol

import torch.distributed as dist

from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode
from elasticflow.shared.runtime.process.logs import log


@dataclass(eq=False)
class PeerLost(Retry):
    """Another worker of the generation is gone; the survivors continue in the next generation."""

    reason: str

    MESSAGE: ClassVar[str] = "{reason}"


class ThreadAbandoned(BaseException):
    """Raised in an abandoned thread when its collective returns. Another thread has continued, so this one must touch
    nothing."""


def is_communication_error(error: BaseException) -> bool:
    """Whether a collective failed. gloo has no exception type; its source path in the text identifies it."""
    return isinstance(error, dist.DistError) or "third_party/gloo" in str(error)


@contextmanager
def raising_peer_lost() -> Iterator[None]:
    """Raises PeerLost for a collective that fails in the block."""
    try:
        yield
    except RuntimeError as error:
        if is_communication_error(error):
            raise PeerLost(f"a collective failed: {error}") from error
        raise


def end_as_lost_peer(reason: str) -> NoReturn:
    """End this process: its GPU waits forever, and so would each thread that asks for a result of it."""
    log.error("worker_cannot_be_freed", reason=reason)
    os._exit(ExitCode.PEER_LOST)


class ClosableGroup(Protocol):
    @property
    def generation(self) -> int: ...
    def close(self) -> None: ...
    def abandon_waiting_thread(self) -> bool: ...


class PeerLossWatchdog(threading.Thread):
    """Closes the groups of every generation that the executor reports as broken.

    groups: those in which this worker may wait for peers. resume: continues in a new thread, after the stuck one was
    abandoned. grace_s: time for a wait to fail by itself after its group was closed.
    """

    def __init__(
        self,
        channel: Channel,
        groups: Callable[[], Iterable[ClosableGroup]],
        resume: Callable[[PeerLost], None],
        *,
        grace_s: float,
    ) -> None:
        super().__init__(name="peer-loss-watchdog", daemon=True)
        self._channel, self._groups, self._resume = channel, groups, resume
        self._grace_s = grace_s

    def run(self) -> None:
        while True:
            self._interrupt(self._channel.receive_loss().generation)

    def _interrupt(self, generation: int) -> None:
        groups = [group for group in self._groups() if group.generation <= generation]
        for group in groups:
            group.close()
        time.sleep(self._grace_s)
        if any(group.abandon_waiting_thread() for group in groups):
            log.warning("waiting_thread_abandoned", generation=generation)
            self._resume(PeerLost("the ledger recorded the loss of a peer for which this worker was waiting"))
