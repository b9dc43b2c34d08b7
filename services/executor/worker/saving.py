"""When the state of a job is kept: now and then, when somebody asks and when a lease is about to run out, beside the
training; and at its end before anything else.

The training waits for a copy in memory, not for the disk. One checkpoint is written at a time; what is due in the
meantime is left out, the next one is newer.
"""

import threading
from collections.abc import Mapping
from typing import Any

import structlog
import torch

from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import CheckpointStore, Superseded, Written
from services.executor.worker.tensor_tree import put_together, take_apart
from services.executor.worker.training_function import TrainingFailed
from shared.messages.from_worker import Checkpointed, NotCheckpointed

log = structlog.get_logger()


class Saving:
    """Of one worker, which tells its executor of each checkpoint."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._copies: list[torch.Tensor] = []  # memory to copy into, again and again
        self._writing: threading.Thread | None = None
        self._superseded: Superseded | None = None
        self._kept_for_lease_until_s = 0.0

    @property
    def is_due(self) -> bool:
        """Somebody waits for a checkpoint, or this worker may soon have to end without a word; and it could be begun.

        One for each lease that fades: NATS may have gone for a while, and with the lease goes what was not kept.
        """
        until_s = self._channel.fading_lease_until_s
        is_last_chance = until_s > 0.0 and until_s != self._kept_for_lease_until_s
        return (self._channel.checkpoint_request > 0 or is_last_chance) and not self._is_busy

    @property
    def _is_busy(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def begin(self, checkpoints: CheckpointStore, iteration: int, state: Mapping[str, Any]) -> None:
        """Copy the state and write it in the background, if nothing is being written. Raises Superseded if that is
        what the last one has found.

        The training is worth more than this checkpoint: where the disk does not take it, the next one may fit.
        """
        if self._superseded is not None:
            raise self._superseded
        if self._is_busy:
            return
        self._kept_for_lease_until_s = self._channel.fading_lease_until_s
        copied, request = self._copy_of(state), self._channel.take_checkpoint_request()
        self._writing = threading.Thread(
            target=self._write, args=(checkpoints, iteration, copied, request), name="checkpoint", daemon=True
        )
        self._writing.start()

    def finish(self, checkpoints: CheckpointStore, iteration: int, state: Mapping[str, Any]) -> None:
        """Write it now. Without this checkpoint the work since the last one is lost: raises TrainingFailed, rather than
        go on as if it were not."""
        self.join()
        try:
            written = checkpoints.save(iteration, state)
        except OSError as error:
            raise TrainingFailed(
                f"the checkpoint of iteration {iteration} could not be written: {error}; "
                "free disk space on the node, then submit the job again"
            ) from error
        self._channel.send(_told(iteration, written, self._channel.take_checkpoint_request()))

    def join(self) -> None:
        """Wait for the disk."""
        if self._writing is not None:
            self._writing.join()

    def _copy_of(self, state: Mapping[str, Any]) -> Any:
        tensors: list[torch.Tensor] = []
        outline = take_apart(dict(state), tensors)
        if [_kind(tensor) for tensor in tensors] != [_kind(copy) for copy in self._copies]:
            self._copies = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)
        return put_together(outline, self._copies)

    def _write(
        self, checkpoints: CheckpointStore, iteration: int, state: Mapping[str, Any], request: int
    ) -> None:
        try:
            written = checkpoints.save(iteration, state)
        except OSError as error:
            log.warning("checkpoint_not_written", iteration=iteration, reason=str(error))
            if request:
                self._channel.send(NotCheckpointed(request=request, reason=str(error)))
        except Superseded as error:
            self._superseded = error
        else:
            self._channel.send(_told(iteration, written, request))
            log.info("checkpoint_written", iteration=iteration)


def _told(iteration: int, written: Written, request: int) -> Checkpointed:
    if not request:
        return Checkpointed(iteration=iteration)
    file, num_bytes = written
    return Checkpointed(iteration=iteration, request=request, num_bytes=num_bytes, file=str(file))


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
