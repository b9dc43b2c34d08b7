"""Decides when a checkpoint is due, and writes it beside the training: periodically, on request, before a lease
expires.

The training waits for a copy in memory, not for the disk. Checkpoints are written one at a time. One that becomes due
meanwhile is skipped, since a newer one follows. The last checkpoint of a worker is written before it ends.
"""

import threading
from collections.abc import Mapping
from typing import Any

import structlog
import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Superseded, Written
from elasticflow.services.executor.worker.elastic.nested_tensors import flatten, unflatten
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.shared.messages.worker_protocol.from_worker import CheckpointFailed, CheckpointWritten

log = structlog.get_logger()


class CheckpointWriter:
    """Reports each checkpoint to the executor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._copies: list[torch.Tensor] = []  # memory that is reused for copies
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

    @property
    def _is_busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def write_in_background(self, checkpoints: CheckpointStore, iteration: int, state: Mapping[str, Any]) -> None:
        """Copy the state and write it in the background, unless a checkpoint is being written.

        Raises Superseded if the last write has found that. A full disk does not stop the training: the next one may
        fit.
        """
        if self._superseded is not None:
            raise self._superseded
        if self._is_busy:
            return
        self._saved_for_lease_until_s = self._channel.expiring_lease_until_s
        copied, request = self._copy_of(state), self._channel.take_checkpoint_request()
        self._writing = threading.Thread(
            target=self._write, args=(checkpoints, iteration, copied, request), name="checkpoint", daemon=True
        )
        self._writing.start()

    def write_now(self, checkpoints: CheckpointStore, iteration: int, state: Mapping[str, Any]) -> None:
        """Write it now. Raises TrainingFailed on a disk error, because the work since the last checkpoint would be
        lost."""
        self.join()
        try:
            written = checkpoints.save(iteration, state)
        except OSError as error:
            raise TrainingFailed(
                f"the checkpoint of iteration {iteration} could not be written: {error}; "
                "free disk space on the node, then submit the job again"
            ) from error
        self._channel.send(_checkpointed(iteration, written, self._channel.take_checkpoint_request()))

    def join(self) -> None:
        """Wait for the disk."""
        if self._writing is not None:
            self._writing.join()

    def _copy_of(self, state: Mapping[str, Any]) -> Any:
        tensors: list[torch.Tensor] = []
        outline = flatten(dict(state), tensors)
        if [_kind(tensor) for tensor in tensors] != [_kind(copy) for copy in self._copies]:
            self._copies = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)
        return unflatten(outline, self._copies)

    def _write(self, checkpoints: CheckpointStore, iteration: int, state: Mapping[str, Any], request: int) -> None:
        try:
            written = checkpoints.save(iteration, state)
        except OSError as error:
            log.warning("checkpoint_not_written", iteration=iteration, reason=str(error))
            if request:
                self._channel.send(CheckpointFailed(request=request, reason=str(error)))
        except Superseded as error:
            self._superseded = error
        else:
            self._channel.send(_checkpointed(iteration, written, request))
            log.info("checkpoint_written", iteration=iteration)


def _checkpointed(iteration: int, written: Written, request: int) -> CheckpointWritten:
    if not request:
        return CheckpointWritten(iteration=iteration)
    file, num_bytes = written
    return CheckpointWritten(iteration=iteration, request=request, num_bytes=num_bytes, file=str(file))


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
