"""What the trainer asks of either mode."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import nn

from services.executor.worker.virtual_nodes import MicroBatch


class Steps(Protocol):
    """How the calls of train() in one step become one step of the whole job."""

    model: nn.Module  # as the user's train() gets it
    computed: tuple[MicroBatch, ...]  # one call for each

    def close(self) -> None: ...
    def take_back(self) -> None: ...
    def run(self, iteration: int, calls: Sequence[Callable[[], Any]]) -> list[Any]: ...
    def changed_buffers(self) -> list[list[float]]: ...
    def combine_buffers(self, changed: Sequence[int]) -> None: ...
