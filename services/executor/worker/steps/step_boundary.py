"""Rolls a failed step back to its step boundary, or forward to the next one, if either is whole."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import torch

OptimizerSettings = Sequence[dict[str, Any]]  # of each parameter group, by name


class StepStage(Enum):
    """How much of the state the present step has changed."""

    BETWEEN_STEPS = auto()
    COMPUTING = auto()  # nothing permanent
    CHANGING = auto()  # a part: the optimizer's step has begun
    CHANGED = auto()  # everything


class StepBoundary:
    """before_optimizer: runs before the first permanent change of a step, and may raise to prevent it."""

    def __init__(self, optimizer: torch.optim.Optimizer, before_optimizer: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._before_optimizer = before_optimizer
        self._settings: OptimizerSettings = ()  # at the last boundary
        self.stage = StepStage.BETWEEN_STEPS
        optimizer.register_step_pre_hook(self._optimizer_begins)

    def begin_step(self) -> None:
        self._settings = optimizer_settings(self._optimizer)
        self.stage = StepStage.COMPUTING

    def all_changed(self) -> None:
        """Only the agreement between the workers is missing."""
        self.stage = StepStage.CHANGED

    def end_step(self) -> None:
        self.stage = StepStage.BETWEEN_STEPS

    def restore_settings(self) -> None:
        restore_settings(self._optimizer, self._settings)

    def _optimizer_begins(self, *_: Any) -> None:
        if self.stage is StepStage.COMPUTING:
            self._before_optimizer()
        self.stage = StepStage.CHANGING


def optimizer_settings(optimizer: torch.optim.Optimizer) -> OptimizerSettings:
    """A copy of the learning rates and the like, which train() may change before the optimizer's step."""
    return [
        {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def restore_settings(optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        group.update(before)
