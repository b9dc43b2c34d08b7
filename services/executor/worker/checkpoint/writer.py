"""Decides when a checkpoint is due, and writes it beside the training: periodically, on request, before a lease
expires.

The training waits for a copy in memory, not for the disk. Checkpoints are written one at a time. One that becomes due
meanwhile is skipped, since a newer one follows. The last checkpoint of a worker is written before it ends.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from elasticflow.services.executor.worker.checkpoint.files import write_model
from elasticflow.services.executor.worker.checkpoint.store import Checkpoints, Superseded, Written
from elasticflow.services.executor.worker.group.nested_tensors import flatten, unflatten
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.shared.messages.worker_protocol.from_worker import CheckpointFailed, CheckpointWritten
from elasticflow.shared.runtime.process.logs import log

# --- host copies ---------------------------------------------------------------------------------------
# Copies of a state in memory of the host, which is reused from checkpoint to checkpoint.


class HostCopies:
    """Copies of a state in the host's memory. Those of GPU tensors lie in pinned memory: the GPU makes them, and no
    thread of the host waits."""

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] = []
        self._waited_s = 0.0
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def begin(self, state: Any) -> Any:
        """A copy of the state, valid after `finish`. Later work of the GPU waits for it, so training may go on."""
        tensors: list[torch.Tensor] = []
        structure = flatten(state, tensors)
        if [_kind(tensor) for tensor in tensors] != [_kind(copy) for copy in self._copies]:
            self._copies = [torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda) for tensor in tensors]
        began_s = time.monotonic()
        self._events = None
        if any(tensor.is_cuda for tensor in tensors):
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._events[0].record()
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=tensor.is_cuda)
        if self._events is not None:
            self._events[1].record()
        self._waited_s = time.monotonic() - began_s
        return unflatten(structure, self._copies)

    def finish(self) -> float:
        """Wait until the newest copy is complete; from any thread. Returns the seconds for which training waited."""
        if self._events is None:
            return self._waited_s
        began, ended = self._events
        ended.synchronize()
        return began.elapsed_time(ended) / 1000


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


# --- writer --------------------------------------------------------------------------------------------

_MOST_COST = 0.05  # of the training time: the wait for the copy, and the processor time of the write


class CheckpointWriter:
    """Reports each checkpoint to the executor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._copies = HostCopies()
        self._cost_s = 0.0  # of the last checkpoint that was written beside the training
        self._writing: threading.Thread | None = None
        self._superseded: Superseded | None = None
        self._saved_for_lease_until_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint was requested, or this worker may soon have to end; and none is being written.

        One for each expiring lease: NATS may be unreachable, and unsaved work ends with the lease.
        """
        until_s = self._channel.expiring_lease_until_s
        is_last_chance = until_s > 0.0 and until_s != self._saved_for_lease_until_s
        return (self._channel.checkpoint_request > 0 or is_last_chance) and not self._is_busy

    def interval_s(self, shortest_s: float) -> float:
        """The time between two periodic checkpoints: shortest_s, or longer, so that they cost a small part of the
        time."""
        return max(shortest_s, self._cost_s / _MOST_COST)

    @property
    def _is_busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def write_in_background(
        self, checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], *, must_write: bool = False
    ) -> None:
        """Copy the state and write it in the background, unless a checkpoint is being written.

        must_write: peers write parts of it, so this worker writes its own in any case. Raises Superseded if the last
        write has found that. A full disk does not stop the training: the next one may fit.
        """
        if self._superseded is not None:
            raise self._superseded
        if self._is_busy and not must_write:
            return
        self.join()
        self._saved_for_lease_until_s = self._channel.expiring_lease_until_s
        copied, request = self._copies.begin(dict(state)), self._channel.take_checkpoint_request()
        self._writing = threading.Thread(
            target=self._write, args=(checkpoints, iteration, copied, request), name="checkpoint", daemon=True
        )
        self._writing.start()

    def write_now(
        self, checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], *, model_dir: Path | None = None
    ) -> None:
        """Write it now, and the model alone below model_dir. Raises TrainingFailed on a disk error, because the work
        since the last checkpoint would be lost."""
        self.join()
        try:
            written = checkpoints.save(iteration, state)
        except OSError as error:
            raise TrainingFailed(
                f"the checkpoint of iteration {iteration} could not be written: {error}; "
                "free disk space on the node, then submit the job again"
            ) from error
        if model_dir is not None:
            write_model(model_dir, iteration, checkpoints.whole_model(iteration, state))
        self._report(iteration, written, self._channel.take_checkpoint_request())

    def join(self) -> None:
        """Wait for the disk."""
        if self._writing is not None:
            self._writing.join()

    def _write(self, checkpoints: Checkpoints, iteration: int, state: Mapping[str, Any], request: int) -> None:
        began_s, waited_s = time.thread_time(), self._copies.finish()
        try:
            written = checkpoints.save(iteration, state)
        except OSError as error:
            log.warning("checkpoint_not_written", iteration=iteration, reason=str(error))
            if request:
                self._channel.send(CheckpointFailed(request=request, reason=str(error)))
        except Superseded as error:
            self._superseded = error
        else:
            if written is not None and request and request == self._channel.model_request:
                write_model(written.file.parent, iteration, checkpoints.whole_model(iteration, state))
            self._report(iteration, written, request)
        self._cost_s = waited_s + time.thread_time() - began_s

    def _report(self, iteration: int, written: Written | None, request: int) -> None:
        """written: None if another worker completes the checkpoint."""
        log.info("checkpoint_written", iteration=iteration)
        if written is None:
            return
        event = CheckpointWritten(iteration=iteration)
        if request:
            event = replace(event, request=request, num_bytes=written.num_bytes, file=str(written.file))
        self._channel.send(event)
