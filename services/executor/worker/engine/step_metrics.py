"""The metrics that train() returned: their names are agreed on once in a generation, their values one step late.

A device computes the values. To read them in their own step, the host would wait for its end, and the device then for
the next step. So the workers agree on them with the next step, or between two steps by `settle`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from elasticflow.services.executor.worker.engine import user_code_checks
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.process.device import DeviceNumbers
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.training_interface import OnStep, RunningJob, running_job


class StepMetrics:
    """The metrics of the steps of one generation. names: that train() returned in the job's first step, if this worker
    knows them. are_needed_at_once: a condition or a sink of the job gets the metrics of each step, also of the last one
    before a loss."""

    def __init__(
        self, members: GenerationMembers, *, names: tuple[str, ...] | None = None, are_needed_at_once: bool = False
    ) -> None:
        self.names = names
        self._members = members
        self._are_needed_at_once = are_needed_at_once
        self._has_agreed = False
        self._unread: DeviceNumbers | None = None  # of the last step

    def begin(self, returned: DeviceNumbers, iteration: int) -> list[tuple[float, ...]]:
        """A collective in a generation's first step: rank 0's names, and whether it needs the values at once.

        Returns the values for this step's agreement, one row for each micro-batch: of this step, or of the one before.
        """
        if not self._has_agreed:
            names = returned.names[0] if self.names is None else self.names
            self.names, self._are_needed_at_once = self._members.from_rank_0((names, self._are_needed_at_once))
            self._has_agreed = True
        assert self.names is not None
        user_code_checks.require_same_metrics(self.names, returned.names, iteration)
        if self._are_needed_at_once:
            return _values(returned)
        before, self._unread = self._unread, returned
        return [() for _ in returned.names] if before is None else _values(before)

    @property
    def are_due(self) -> bool:
        """Whether the values of the last step are due."""
        return self._unread is not None

    def named(self, means: Sequence[float]) -> dict[str, float]:
        """What was agreed on; empty after a first step, whose values follow."""
        return dict(zip(self.names or (), means, strict=True)) if means else {}

    def settle(self) -> dict[str, float]:
        """A collective if values are due: those of the last step."""
        if self._unread is None:
            return {}
        means = self._members.means(_values(self._unread))
        self._unread = None
        return self.named(means)

    def forget(self) -> bool:
        """Forget the due values after the loss of a peer, which had a part of them. Returns whether values were due."""
        were_due, self._unread = self.are_due, None
        return were_due


def _values(numbers: DeviceNumbers) -> list[tuple[float, ...]]:
    return [tuple(row.values()) for row in numbers.read()]


# --- metric feed ---------------------------------------------------------------------------------------
# Feeds the metrics of a job to its user's sink: once for each iteration, whichever worker leads.
#
# The newest iteration that was fed is written beside the checkpoints, before the sink gets it. So iterations that are
# trained again after a crash are not fed again, and a new leader feeds the iteration that the last one left. Only if
# a leader dies within the call of the sink, or all agreement on an iteration is lost, is that iteration missing.

_FILE, _DIGITS = "fed-iteration", 14


def running_job_of(assignment: Assignment) -> RunningJob:
    """The job as sinks see it, before it trains."""
    return RunningJob(
        job_id=assignment.job_id,
        identity=assignment.job_identity,
        spec=assignment.spec,
        deadline_s=assignment.deadline_s,
        folder=Path(assignment.checkpoint_dir),
    )


class MetricFeed:
    """The metric feed of rank 0. on_step: the sink; None: there is none. folder: of the job's checkpoints."""

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

    def end(self) -> None:
        """The last iteration of the job was fed."""
        if (job := running_job()) is not None:
            job.has_finished = True

    def _fed_iteration(self) -> int:
        try:
            return int(self._file.read_text() or 0)
        except FileNotFoundError:
            return 0

    def _write(self, iteration: int) -> None:
        """Write the iteration in one write of constant length: a reader sees the whole number before or after it."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, f"{iteration:0{_DIGITS}d}".encode(), 0)
        finally:
            os.close(file)
