"""The training loop, from the assignment to the last word. Read it from the top to the bottom.

What one step is, and what the workers agree on in it, is in trainer.py.
"""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import structlog

from services.executor.worker import torchrun
from services.executor.worker.changes import Changes
from services.executor.worker.channel import Channel
from services.executor.worker.device import MemoryExceeded, prepare_thread
from services.executor.worker.groups import LeftBehind, PeerLost
from services.executor.worker.handover import HandOver
from services.executor.worker.interruption import Interruption
from services.executor.worker.repeatability import first_step_twice
from services.executor.worker.saving import Saving
from services.executor.worker.script import Script
from services.executor.worker.setting_up import set_up
from services.executor.worker.surroundings import at_home
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.trainer import Trainer
from shared.messages.from_worker import Finished, Interrupted, Profiled, Started
from shared.messages.job import TORCHRUN
from shared.messages.to_worker import Assignment

log = structlog.get_logger()

_MIN_MEASURED_ITERATIONS = 3
_LONG_ITERATIONS = 100  # one more is far less than the margin of a promise
_TURN_S = 0.1  # between two ranks that would save the same


def run(assignment: Assignment, channel: Channel, elsewhere: Callable[[Callable[[], None]], None]) -> None:
    """Train, or measure, until done, told to stop, or gone. Raises TrainingFailed, PeerLost, Superseded or
    whatever the user's code raises. elsewhere: does in another thread what this one was to do, to its end."""
    with at_home(assignment), Telemetry(channel) as telemetry:
        if assignment.spec.entry == TORCHRUN:
            speed = torchrun.run(assignment, channel, telemetry)
        elif assignment.purpose == "profile":
            speed = _profile(assignment, channel, telemetry)
        else:
            speed = None
            _train(assignment, channel, telemetry, elsewhere)
    if speed is not None:  # what a pre-run has left is gone: from now on it may be killed
        channel.send(speed)


def _begin(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> tuple[Trainer, HandOver | None]:
    trainer, handed = set_up(assignment, channel, telemetry)
    channel.begin_training()
    if handed is None:
        channel.send(Started(iteration=trainer.iteration))
    log.info("training_started", iteration=trainer.iteration, world_size=assignment.world_size)
    return trainer, handed


def _profile(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> Profiled | None:
    """The speed, on rank 0."""
    trainer, _ = _begin(assignment, channel, telemetry)
    try:
        return _measure(trainer, assignment, channel)
    except MemoryExceeded as exceeded:  # nothing is to be kept: another generation measures smaller ones
        log.warning("interrupted", reason=str(exceeded))
        size = exceeded.micro_batch_size
        channel.send(Interrupted(iteration=trainer.iteration, micro_batch_size=size))
        channel.wait_for_stop()
        return None


def _train(
    assignment: Assignment,
    channel: Channel,
    telemetry: Telemetry,
    elsewhere: Callable[[Callable[[], None]], None],
) -> None:
    born_s = time.monotonic()
    trainer, handed = _begin(assignment, channel, telemetry)
    changes = Changes(trainer, channel, handed, since_s=born_s)
    training = _Training(trainer, channel, changes, handed is None and _may_be_unchecked(trainer))

    def go_on_elsewhere(lost: PeerLost) -> None:
        elsewhere(partial(training.take_over, lost))

    noticing_s = assignment.detection.look_s
    Interruption(channel, changes, go_on_elsewhere, noticing_s=noticing_s).start()
    training.go_on()


@dataclass
class _Training:
    trainer: Trainer
    channel: Channel
    changes: Changes
    is_unchecked: bool  # its first step is done twice

    def __post_init__(self) -> None:
        self._saving = Saving(self.channel)
        self._saved_at_s = time.monotonic()
        self._first = self.trainer.iteration

    def go_on(self, cause: PeerLost | MemoryExceeded | None = None) -> None:
        """To the end. cause: for which this worker is at a step boundary, and waits for others."""
        over = False
        while not over:
            try:
                over = self._step() if cause is None else self._survive(cause)
                cause = None
            except (PeerLost, MemoryExceeded) as error:
                if not self.trainer.mend():
                    raise
                if isinstance(error, MemoryExceeded) and isinstance(self.trainer.function, Script):
                    self._keep_what_a_script_did(error)
                    raise
                cause = error.with_traceback(None)  # its frames hold the step's memory
            except LeftBehind:
                threading.Event().wait()  # for the end of the process: another thread sees to it

    def take_over(self, lost: PeerLost) -> None:
        """From a thread that waits in vain for whom is lost."""
        prepare_thread(self.trainer.device)
        if not self.trainer.mend():
            raise lost
        self.go_on(lost)

    def _step(self) -> bool:
        """One, and what is due before it. True if there is nothing left to do here."""
        trainer = self.trainer
        if trainer.evaluation_is_due():
            trainer.evaluate()
        if (condition := trainer.condition_met()) is not None:
            _finish(trainer, self._saving, self.channel, condition)
            return True
        if trainer.checkpoints and trainer.iteration > self._first and self._checkpoint_is_due():
            self._saving.begin(trainer.checkpoints, trainer.iteration, trainer.state())
            self._saved_at_s = time.monotonic()
        if self.is_unchecked:
            self.is_unchecked = False
            stop, switch = first_step_twice(trainer, stop=self.channel.stop_requested), False
        else:
            stop, switch = self.changes.step(stop=self.channel.stop_requested)
        if trainer.iteration == self._first + 1:  # optimizers get their state in the first step
            trainer.check_state()
        if stop:
            _stop(trainer, self._saving)
            return True
        if switch:
            self.changes.go_over()
        return self._has_left()

    def _checkpoint_is_due(self) -> bool:
        rests_s = time.monotonic() - self._saved_at_s
        return self._saving.is_due or rests_s >= self.trainer.assignment.checkpoint_every_s

    def _survive(self, cause: PeerLost | MemoryExceeded) -> bool:
        """As `_step`."""
        self.changes.tell_interrupted(cause)
        if self.changes.survive():
            return self._has_left()
        _stop_alone(self.trainer, self._saving)
        return True

    def _keep_what_a_script_did(self, cause: MemoryExceeded) -> None:
        """An error in its loop was its end: another process goes on."""
        self.changes.tell_interrupted(cause)
        _stop_alone(self.trainer, self._saving)

    def _has_left(self) -> bool:
        if self.changes.left:
            log.info("left_at_boundary", iteration=self.trainer.iteration)
        return self.changes.left


def _may_be_unchecked(trainer: Trainer) -> bool:
    """Whether no pre-run may have done a step of this code twice: its speed can be known by its name.

    A script keeps more of a step than could be taken back, and a short job was promised no time for one more.
    """
    if isinstance(trainer.function, Script) or trainer.spec.max_iterations < _LONG_ITERATIONS:
        return False
    return trainer.iteration == 0 and bool(trainer.spec.model_name)


def _stop(trainer: Trainer, saving: Saving) -> None:
    trainer.members.leave()
    if trainer.checkpoints:
        saving.finish(trainer.checkpoints, trainer.iteration, trainer.state())
    log.info("stopped_at_boundary", iteration=trainer.iteration)


def _stop_alone(trainer: Trainer, saving: Saving) -> None:
    """Peers are gone: what all who are left have in common is kept by whoever is first."""
    checkpoints = trainer.checkpoint_store()
    time.sleep(_TURN_S * trainer.members.rank)
    if checkpoints.newest_iteration() < trainer.iteration:
        saving.finish(checkpoints, trainer.iteration, trainer.state())
    log.info("stopped_alone", iteration=trainer.iteration)


def _finish(
    trainer: Trainer, saving: Saving, channel: Channel, condition: Literal["max_iterations", "metric"]
) -> None:
    trainer.members.leave()
    if not trainer.checkpoints:
        return
    trainer.evaluate_here()
    saving.finish(trainer.checkpoints, trainer.iteration, trainer.state())
    metrics = trainer.finite_metrics()
    channel.send(Finished(iteration=trainer.iteration, condition=condition, metrics=metrics))
    log.info("training_finished", iteration=trainer.iteration, condition=condition, **metrics)


def _measure(trainer: Trainer, assignment: Assignment, channel: Channel) -> Profiled | None:
    """Median speed after a short warm-up. Rank 0's clock decides when it is known well enough."""

    def enough() -> bool:
        return len(step_times_s) >= _MIN_MEASURED_ITERATIONS and (
            sum(step_times_s) >= assignment.profile_min_s
            or len(step_times_s) >= assignment.profile_max_iterations
        )

    step_times_s: list[float] = []
    if first_step_twice(trainer, stop=channel.stop_requested):  # to warm up, too
        return None
    trainer.check_state()
    stopping = False
    while not stopping:
        began_s = time.monotonic()
        stopping = trainer.step(stop=channel.stop_requested or (trainer.is_rank_0 and enough())).stop
        step_times_s.append(time.monotonic() - began_s)
    trainer.members.leave()
    if not (trainer.is_rank_0 and enough()):
        return None
    rate = 1 / max(statistics.median(step_times_s), 1e-6)
    log.info("profiled", iterations_per_s=round(rate, 3), iterations=len(step_times_s))
    return Profiled(iterations_per_s=rate, dataset_size=trainer.dataset.partitions.num_samples)
