"""Feeds the metrics of a job to its user's sink: once for each iteration, whichever worker leads.

The newest iteration that was fed is written beside the checkpoints, before the sink gets it. So iterations that are
trained again after a crash are not fed again, and a new leader feeds the iteration that the last one left. Only if a
leader dies within the call of the sink, or all agreement on an iteration is lost, is that iteration missing.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import structlog

from elasticflow.shared.training_interface import OnStep

log = structlog.get_logger()

_FILE, _DIGITS = "fed-iteration", 14


class MetricFeed:
    """Of rank 0. on_step: the sink; None: there is none. folder: of the job's checkpoints."""

    def __init__(self, on_step: OnStep | None, folder: Path) -> None:
        self._on_step = on_step
        self._file = folder / _FILE

    def feed(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """metrics: of the step that ended with this iteration; empty if they are lost. A sink that fails stops no
        training."""
        if self._on_step is None or not metrics or iteration <= self._fed_iteration():
            return
        self._write(iteration)
        try:
            self._on_step(iteration, dict(metrics))
        except Exception as error:
            log.warning("metrics_not_delivered", iteration=iteration, error=f"{type(error).__name__}: {error}")

    def _fed_iteration(self) -> int:
        try:
            return int(self._file.read_text() or 0)
        except FileNotFoundError:
            return 0

    def _write(self, iteration: int) -> None:
        """In one write of constant length: a reader sees the whole number before or after it."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, f"{iteration:0{_DIGITS}d}".encode(), 0)
        finally:
            os.close(file)
