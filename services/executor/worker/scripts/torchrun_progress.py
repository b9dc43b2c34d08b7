"""The progress of a torchrun script, which reports none itself: steps of its optimizer, and files that it saves.

A step is one iteration of the job. If each worker has batch_per_worker samples of its own, a step is as large a part of
an iteration as these samples are of a global batch: a fraction, because floats of many parts add up to a little less
than the whole. The progress at rank 0's last `torch.save` is recorded when the
next step ends, since until then the script may still rename the file. The next generation continues from there.
"""

import math
import os
import statistics
import threading
import time
from fractions import Fraction
from functools import wraps
from itertools import pairwise
from typing import Any, NamedTuple

import structlog
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.steps.restored_state import checkpoint_store
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    Finished,
    Profiled,
    Started,
)
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

_WARM_UP_STEPS = 2
_MIN_MEASURED_STEPS = 3
_UNSAVED_S = 60.0  # of training, until a script counts as one that saves nothing

log = structlog.get_logger()


class ProfilingCompleted(BaseException):
    """Ends the script of a profiling run from within, once rank 0 knows the speed."""

    def __init__(self, speed: Profiled) -> None:
        super().__init__(speed)
        self.speed = speed


class Recorded(NamedTuple):
    """What earlier generations have recorded. lost_checkpoints: as in `Restored`."""

    iterations: Fraction = Fraction(0)
    lost_checkpoints: str = ""


class TorchrunProgress:
    """recorded: where this generation begins."""

    def __init__(
        self,
        assignment: Assignment,
        channel: Channel,
        telemetry: Telemetry,
        cpu_throttle: CpuThrottle,
        *,
        recorded: Recorded,
    ) -> None:
        self._assignment = assignment
        self._channel = channel
        self._telemetry = telemetry
        self._cpu_throttle = cpu_throttle
        self._done, self._lost_checkpoints = recorded
        self._iterations_per_step = iterations_per_step(assignment)
        self._num_steps = 0
        self._optimizer: Any = None  # the first that steps; a script may have others
        self._step_ends_s: list[float] = []
        # iterations at the last save; the file may not have its final name yet
        self._saved: Fraction | None = None
        self._may_warn = self.records_snapshots
        self._snapshot_times_s: list[float] = []
        self._snapshot_recorded = threading.Event()
        self._store = checkpoint_store(assignment)

    @property
    def records_snapshots(self) -> bool:
        return self._assignment.rank == 0 and self._assignment.purpose == "train"

    @property
    def has_begun(self) -> bool:
        """The script has taken a step."""
        return bool(self._step_ends_s)

    @property
    def iteration(self) -> int:
        """Less than the job's last iteration until the script has ended: its end is not known in advance."""
        return self._whole(self._done)

    def _whole(self, iterations: Fraction) -> int:
        return min(int(iterations), self._assignment.spec.max_iterations - 1)

    def watch(self) -> None:
        """Observe everything that the script does in this process from now on."""
        register_optimizer_step_post_hook(self._stepped)
        if self.records_snapshots:
            self._watch_saving()

    def wait_for_snapshot(self, timeout_s: float) -> None:
        """Wait for the next snapshot if one is expected before the timeout."""
        self._snapshot_recorded.clear()
        if len(self._snapshot_times_s) < 2:
            return
        before_s, last_s = self._snapshot_times_s[-2:]
        if last_s + (last_s - before_s) <= time.monotonic() + timeout_s:
            self._snapshot_recorded.wait(timeout_s)

    def finish(self) -> None:
        """The script has ended on all workers. Raises ProfilingCompleted in a profiling run."""
        if self._assignment.purpose == "profile":
            if self._assignment.rank == 0:
                raise ProfilingCompleted(self._speed())
            return
        self._begin()
        if self._assignment.rank > 0:
            return
        self._keep()
        limit = self._assignment.spec.max_iterations
        iteration = min(int(self._done), limit)
        condition = "max_iterations" if iteration == limit else "metric"
        self._channel.send(Finished(iteration=iteration, condition=condition))
        log.info("script_ended", iteration=iteration, steps=self._num_steps)

    def _begin(self) -> None:
        """Once: at the first step, or at an end without steps."""
        if not self.has_begun:
            self._channel.send(Started(iteration=self.iteration, lost_checkpoints=self._lost_checkpoints))
            self._telemetry.training_began(self.iteration)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer:
            return
        self._begin()
        self._cpu_throttle.sleep_off_excess()
        self._step_ends_s.append(time.monotonic())
        self._num_steps += 1
        self._keep()
        self._warn_if_unsaved()
        before = self.iteration
        self._done += self._iterations_per_step
        if self.iteration > before:
            self._telemetry.step_ended(self.iteration, {})
        else:
            self._telemetry.progressed()
        if self._assignment.purpose == "profile" and self._assignment.rank == 0 and self._is_measured():
            raise ProfilingCompleted(self._speed())

    # --- snapshots ---

    def _warn_if_unsaved(self) -> None:
        if not self._may_warn or self._step_ends_s[-1] - self._step_ends_s[0] < _UNSAVED_S:
            return
        self._may_warn = False
        if not self._snapshot_times_s:
            self._telemetry.warn(
                f"the script has saved nothing with torch.save in {_UNSAVED_S:.0f} s of training: after each change of "
                "its GPUs, and after each crash, it starts again from its last snapshot, or from the beginning"
            )

    def _watch_saving(self) -> None:
        save = torch.save

        @wraps(save)
        def save_and_note(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            save(obj, f, *args, **kwargs)
            if isinstance(f, str | os.PathLike):  # a save to memory is no snapshot
                self._saved = self._done

        torch.save = save_and_note

    def _keep(self) -> None:
        """Record what was saved before the step that has just ended. Raises Superseded.

        If the record fails, the next generation only reports less progress than its script has made.
        """
        if self._saved is None:
            return
        done, self._saved = self._saved, None
        try:
            self._store.save(self._whole(done), {"iterations": str(done)})
        except OSError as error:
            log.warning("progress_not_recorded", iterations=float(done), reason=str(error))
        else:
            self._channel.send(CheckpointWritten(iteration=self._whole(done)))
        self._snapshot_times_s = [*self._snapshot_times_s[-1:], time.monotonic()]
        self._snapshot_recorded.set()

    # --- profiling runs ---

    def _step_times_s(self) -> list[float]:
        return [end_s - begin_s for begin_s, end_s in pairwise(self._step_ends_s[_WARM_UP_STEPS - 1 :])]

    def _is_measured(self) -> bool:
        times_s = self._step_times_s()
        long_enough = sum(times_s) >= self._assignment.profile_min_s
        enough = long_enough or len(times_s) >= self._assignment.profile_max_iterations
        return len(times_s) >= _MIN_MEASURED_STEPS and enough

    def _speed(self) -> Profiled:
        times_s = self._step_times_s()
        if len(times_s) < _MIN_MEASURED_STEPS:
            elsewhere = "" if self._num_steps else " in its own process; those of processes that it starts do not count"
            raise TrainingFailed(
                f"the script ended after {self._num_steps} optimizer steps, too few to measure its speed: let it "
                f"take at least {_WARM_UP_STEPS + _MIN_MEASURED_STEPS}{elsewhere}"
            )
        rate = float(self._iterations_per_step) / max(statistics.median(times_s), 1e-6)
        log.info("profiled", iterations_per_s=round(rate, 3), steps=len(times_s))
        return Profiled(iterations_per_s=rate, dataset_size=None)


def iterations_per_step(assignment: Assignment) -> Fraction:
    """Iterations of the job in one step of the script's optimizer. Raises TrainingFailed."""
    spec = assignment.spec
    batch_per_worker = spec.hyperparameters.get("batch_per_worker")
    if batch_per_worker is None:
        return Fraction(1)
    if isinstance(batch_per_worker, bool | str) or not 0 < batch_per_worker < math.inf:
        raise TrainingFailed(f"batch_per_worker: must be a positive number of samples, not {batch_per_worker!r}")
    return Fraction(batch_per_worker) * assignment.world_size / spec.global_batch_size
