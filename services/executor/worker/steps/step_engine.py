"""What a trainer needs of the two ways in which this worker's calls of train() become one step of the whole job."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import nn

from elasticflow.services.executor.worker.steps.gradient_digest import StepDigest
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch


class StepEngine(Protocol):
    """`BitwiseSteps` or `FastSteps`."""

    model: nn.Module  # as the user's train() receives it
    computed: tuple[MicroBatch, ...]  # one call for each
    step_digest: StepDigest  # of the gradients of the last step

    def close(self) -> None: ...
    def roll_back(self) -> None: ...
    def note_loaded(self) -> None: ...
    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]: ...
    def changed_buffers(self) -> list[list[float]]: ...
    def combine_buffers(self, changed: Sequence[int]) -> None: ...
