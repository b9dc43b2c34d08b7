"""Values of the whole global batch, for `train`, which gets one part of it at a time. This imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticflow.shared.training_interface import offered_whole_batch

if TYPE_CHECKING:
    from torch import Tensor


def mean(value: Tensor | float) -> float:
    """The mean over the global batch of what all calls of `train` give, each weighted by its samples; no gradient.

        self.schedule.step(elasticflow.mean(loss))  # ReduceLROnPlateau

    All calls of a step get the same bits, on any number of GPUs. Call it before `optimizer.step()` where possible: a
    worker that is lost behind that costs the work since the newest checkpoint. Outside of `train`: the value.
    """
    if (worker := offered_whole_batch()) is not None:
        return worker.mean(value)
    return float(value) if isinstance(value, int | float) else value.item()


def gather(tensor: Tensor) -> Tensor:
    """The rows of all parts of the global batch, in its order: for losses that compare all samples, as in CLIP, SimCLR.

        loss = contrastive(elasticflow.gather(images), elasticflow.gather(texts))

    tensor: (samples of this part, ...). Returns (samples of all parts, ...), the same bits in each call and on any
    number of GPUs, with gradients. Compute the loss of the whole batch from it, as on one device. A loss over the own
    rows only must be their mean. All parts of a worker keep their activations until then, so that smaller micro-batches
    save no memory. Outside of `train`: the tensor. Not in the fast mode, nor in scripts.
    """
    worker = offered_whole_batch()
    return tensor if worker is None else worker.gather(tensor)
