"""How far a script is that tells nobody: by the steps of its optimizer, and by what it saves.

A step is one iteration of the job; or, where each worker brings batch_per_worker samples of its own, as much of one as
these are of a global batch. What was done when rank 0 last saved something with `torch.save` is kept, once the next
step has ended: until then a script may still give the file its name. From there it is expected to go on.
"""

import os
import statistics
import threading
import time
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import structlog
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from services.executor.worker.channel import Channel
from services.executor.worker.checkpoint import CheckpointStore
from services.executor.worker.pacing import Pacer
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.training_function import TrainingFailed
from shared.messages.from_worker import Checkpointed, Finished, Profiled, Started
from shared.messages.to_worker import Assignment

_WARM_UP_STEPS = 2
_MIN_MEASURED_STEPS = 3

log = structlog.get_logger()


class Measured(BaseException):
    """Ends the script of a pre-run, from within: its speed is known. From rank 0."""

    def __init__(self, speed: Profiled) -> None:
        super().__init__(speed)
        self.speed = speed


class ScriptProgress:
    """done: iterations that an earlier generation has kept."""

    def __init__(
        self, assignment: Assignment, channel: Channel, telemetry: Telemetry, pacer: Pacer, *, done: float
    ) -> None:
        self._assignment = assignment
        self._channel = channel
        self._telemetry = telemetry
        self._pacer = pacer
        self._done = done
        self._iterations_a_step = iterations_a_step(assignment)
        self._num_steps = 0
        self._optimizer: Any = None  # the first that steps; a script may have others beside it
        self._step_ends_s: list[float] = []
        self._saved: float | None = None  # so many iterations, but the file may not have its name yet
        self._kept_at_s: list[float] = []
        self._has_kept = threading.Event()
        self._store = CheckpointStore(Path(assignment.checkpoint_dir), generation=assignment.generation)

    @property
    def keeps_snapshots(self) -> bool:
        return self._assignment.rank == 0 and self._assignment.purpose == "train"

    @property
    def iteration(self) -> int:
        """Never the last one before the script has ended: nobody else knows when that is."""
        return self._whole(self._done)

    def _whole(self, iterations: float) -> int:
        return min(int(iterations), self._assignment.spec.max_iterations - 1)

    def watch(self) -> None:
        """From here on, everything that the script does in this process."""
        register_optimizer_step_post_hook(self._stepped)
        if self.keeps_snapshots:
            self._watch_saving()

    def wait_for_snapshot(self, patience_s: float) -> None:
        """If one may be expected by then; from the beginning of the wait."""
        self._has_kept.clear()
        if len(self._kept_at_s) < 2:
            return
        before_s, last_s = self._kept_at_s[-2:]
        if last_s + (last_s - before_s) <= time.monotonic() + patience_s:
            self._has_kept.wait(patience_s)

    def finish(self) -> None:
        """The script has ended on all workers. Raises Measured in a pre-run."""
        if self._assignment.purpose == "profile":
            if self._assignment.rank == 0:
                raise Measured(self._speed())
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
        """Once: with the first step, or at an end without any."""
        if not self._step_ends_s:
            self._channel.begin_training()
            self._channel.send(Started(iteration=self.iteration))
            self._telemetry.began(self.iteration)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer:
            return
        self._begin()
        self._pacer.pace()
        self._step_ends_s.append(time.monotonic())
        self._num_steps += 1
        self._keep()
        before = self.iteration
        self._done += self._iterations_a_step
        if self.iteration > before:
            self._telemetry.step_ended(self.iteration, {})
        else:
            self._telemetry.moved()
        if self._assignment.purpose == "profile" and self._assignment.rank == 0 and self._is_measured():
            raise Measured(self._speed())

    # --- snapshots ---

    def _watch_saving(self) -> None:
        save = torch.save

        @wraps(save)
        def save_and_note(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            save(obj, f, *args, **kwargs)
            if isinstance(f, str | os.PathLike):  # in memory, nothing is kept
                self._saved = self._done

        torch.save = save_and_note

    def _keep(self) -> None:
        """What was saved before the step that has just ended. Raises Superseded.

        Without this note the next generation counts as not done what its script has: no harm.
        """
        if self._saved is None:
            return
        done, self._saved = self._saved, None
        try:
            self._store.save(self._whole(done), {"iterations": done})
        except OSError as error:
            log.warning("progress_not_noted", iterations=done, reason=str(error))
        else:
            self._channel.send(Checkpointed(iteration=self._whole(done)))
        self._kept_at_s = [*self._kept_at_s[-1:], time.monotonic()]
        self._has_kept.set()

    # --- pre-runs ---

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
            raise TrainingFailed(
                f"the script ended after {self._num_steps} steps of its optimizer: too few to measure its speed"
            )
        rate = self._iterations_a_step / max(statistics.median(times_s), 1e-6)
        log.info("profiled", iterations_per_s=round(rate, 3), steps=len(times_s))
        return Profiled(iterations_per_s=rate, dataset_size=None)


def iterations_a_step(assignment: Assignment) -> float:
    """Iterations of the job in one step of the script's optimizer. Raises TrainingFailed."""
    spec = assignment.spec
    batch_per_worker = spec.hyperparameters.get("batch_per_worker")
    if batch_per_worker is None:
        return 1.0
    if isinstance(batch_per_worker, bool | str) or batch_per_worker <= 0:
        raise TrainingFailed(f"batch_per_worker: must be a number of samples, not {batch_per_worker!r}")
    return batch_per_worker * assignment.world_size / spec.global_batch_size
