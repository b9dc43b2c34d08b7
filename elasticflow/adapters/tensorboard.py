"""Metrics of a job in TensorBoard: the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from elasticflow.shared.extras import require_extra


class TensorBoard:
    """A sink: `on_step = TensorBoard("/shared/runs/digits")`. folder: on storage that all nodes share.

    Opened by the first step that a process feeds, thus only by the worker that leads. Raises MissingExtra.
    """

    def __init__(self, folder: str | Path) -> None:
        require_extra("tensorboard", "TensorBoard")
        self._folder = str(folder)

    def __call__(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()  # before the next leader opens a file of its own

    @cached_property
    def _writer(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self._folder)
