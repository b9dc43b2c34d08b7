"""Queues of samples in floating-point buffers, such as the keys of MoCo: their mean over the parts of a batch is wrong.

Each part of a batch writes its own samples to the same places. A statistic of the part, which may be as rare in a large
buffer, is right as a mean: so only what has as many new slices as the part has samples counts. Parts that write the
samples of the whole batch, as `elasticflow.gather` gives them, write the same.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from elasticflow.services.executor.worker.engine.plain_state import is_users_class
from elasticflow.services.executor.worker.interface import TrainingFailed

NUM_STEPS = 3  # of a process, in which it is watched: one that began with zeros shows in the second


def may_be_queue(module: nn.Module, buffer: torch.Tensor) -> bool:
    is_of_layer = isinstance(module, _NormBase)
    return is_users_class(type(module)) and not is_of_layer and buffer.is_floating_point() and buffer.numel() > 1


def require_no_queue(
    module: nn.Module, name: str, before: torch.Tensor, values: Sequence[torch.Tensor], num_samples: Sequence[int]
) -> None:
    """values: that the parts have given the buffer, each with so many samples. Raises TrainingFailed."""
    if is_queue(before, values, num_samples):
        raise TrainingFailed(
            f"each part of a batch writes its own samples to the same places of {name} of {type(module).__name__}, "
            f"and a buffer becomes the mean of its parts: of {sum(num_samples)} samples, {num_samples[0]} means would "
            "stay. Let each part write those of the whole batch: keys = elasticflow.gather(keys), and move the pointer "
            "by len(keys) (a script: write a class)"
        )


def is_queue(before: torch.Tensor, values: Sequence[torch.Tensor], num_samples: Sequence[int]) -> bool:
    """Waits for the device."""
    count = num_samples[0]
    if len(values) < 2 or count < 2 or any(each != count for each in num_samples):
        return False
    first, *others = values
    written = first.ne(before)
    if any(not torch.equal(each.ne(before), written) for each in others) or all(
        torch.equal(each, first) for each in others
    ):
        return False
    known = before.ne(0)
    num_known, num_kept = (int(each.sum()) for each in (known, known & ~written))
    num_slices = (int(_slices(written, axis).sum()) for axis in range(written.dim()))
    return num_known > 0 and 2 * num_kept >= num_known and count in num_slices


def _slices(written: torch.Tensor, axis: int) -> torch.Tensor:
    """Which slices along this axis have a new element."""
    return written.movedim(axis, 0).reshape(written.shape[axis], -1).any(1)
