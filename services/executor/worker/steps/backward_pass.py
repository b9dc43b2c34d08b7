"""A backward pass of one micro-batch within the sum over all: how it begins, and what becomes of its gradients."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from elasticflow.services.executor.worker.steps.shared_sum import SharedSum
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed


@contextmanager
def each_written_to(shared_sum: SharedSum | None, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within a backward pass: write each gradient to the sum once it is there, and send what is complete."""

    def write(position: int, parameter: torch.Tensor) -> None:
        if shared_sum is not None and parameter.grad is not None and parameter.grad.layout is torch.strided:
            with torch.no_grad():
                shared_sum.write(position, parameter.grad)
            shared_sum.send_written()

    hooks = [
        parameter.register_post_accumulate_grad_hook(partial(write, position))
        for position, parameter in enumerate(parameters if shared_sum is not None else ())
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def dense_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    if parameter.grad is None:
        return None
    if parameter.grad.layout is not torch.strided:
        raise TrainingFailed(
            "the model has sparse gradients, which the bitwise mode does not support: make them dense, or set "
            'reproducible = "fast"'
        )
    return parameter.grad.detach()


def weighted_roots(tensors: Any, grad_tensors: Any, weight: float) -> Any:
    """Initial gradients of the backward pass, so that a mean over a part is weighted by its size."""
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [None] * len(roots))
    return [
        torch.full_like(root, weight) if grad is None and root.numel() == 1 else grad if grad is None else grad * weight
        for root, grad in zip(roots, given, strict=True)
    ]
