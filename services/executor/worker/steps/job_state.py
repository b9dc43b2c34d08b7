"""The state of a job: what a checkpoint or a state transfer carries into the next generation, of any size.

It is whole at a step boundary. `StepBoundary` says whether a failed step can be rolled back, or completed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.data.dataset import DataSet
from elasticflow.services.executor.worker.steps import user_code_checks
from elasticflow.services.executor.worker.steps.training_function import Stateful
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment


@dataclass(kw_only=True)
class JobState:
    """iteration, metrics and is_over describe the last step boundary."""

    assignment: Assignment
    model: nn.Module  # as the user made it
    stateful: Mapping[str, Stateful]  # all that outlives a generation, by name; the model first
    dataset: DataSet
    iteration: int = 0  # steps done
    metrics: dict[str, float] = field(default_factory=dict)
    metric_names: tuple[str, ...] | None = None  # that train() returned in the first step
    is_over: bool = False  # some training function ended the job
    generation: int = 0

    @property
    def spec(self) -> JobSpec:
        return self.assignment.spec

    def state(self) -> dict[str, Any]:
        """Everything that a generation of any size needs; the data order follows from the iteration."""
        self.check_state()
        return {
            **{name: each.state_dict() for name, each in self.stateful.items()},
            "iteration": self.iteration,
            "epoch": self.iteration * self.spec.global_batch_size // self.dataset.partitions.num_samples,
            "samples": self.dataset.samples_digest,
            "metrics": self.metrics,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a worker that is one step ahead."""
        for name, each in self.stateful.items():
            each.load_state_dict(state[name])
        self.iteration, self.metrics = state["iteration"], dict(state["metrics"])

    def check_state(self) -> None:
        user_code_checks.require_readable_state(self.stateful)

    def checkpoint_store(self) -> CheckpointStore:
        """As the present generation sees the job's checkpoints."""
        return CheckpointStore(Path(self.assignment.checkpoint_dir), generation=self.generation)

    def condition_met(self) -> Literal["max_iterations", "metric"] | None:
        """The condition that ends the job, if one is met."""
        if any(condition.is_met(self.metrics) for condition in self.spec.metric_conditions):
            return "metric"
        if self.iteration >= self.spec.max_iterations:
            return "max_iterations"
        return "metric" if self.is_over else None  # by a metric of its own

    def finite_metrics(self) -> dict[str, float]:
        return {name: value for name, value in self.metrics.items() if math.isfinite(value)}


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
