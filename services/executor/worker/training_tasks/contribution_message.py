"""A contribution as the fields and tensors of one message, and back."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from elasticflow.services.executor.worker.training_tasks.task_steps import Contribution


def contribution_message(contribution: Contribution) -> tuple[dict[str, Any], list[torch.Tensor]]:
    gradients = contribution.gradients
    changed = [sorted(each.items()) for each in contribution.changed]
    fields = {
        "has_gradient": [gradient is not None for gradient in gradients],
        "changed": [[index for index, _ in each] for each in changed],
        "metrics": [dict(each) for each in contribution.metrics],
        "is_over": contribution.is_over,
    }
    tensors = [gradient for gradient in gradients if gradient is not None]
    return fields, tensors + [value for each in changed for _, value in each]


def contribution_in(fields: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Contribution:
    received: Iterator[torch.Tensor] = iter(tensors)
    return Contribution(
        gradients=[next(received) if has_gradient else None for has_gradient in fields["has_gradient"]],
        changed=[{index: next(received) for index in indices} for indices in fields["changed"]],
        metrics=fields["metrics"],
        is_over=fields["is_over"],
    )
