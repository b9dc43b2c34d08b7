"""The optimizer's settings, learning rates and the like: what train() may change before the optimizer's step."""

from collections.abc import Sequence
from typing import Any

import torch

Settings = Sequence[dict[str, Any]]  # of each group of parameters, by name


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """As they are now, whatever is changed later."""
    return [
        {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def restore(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)
