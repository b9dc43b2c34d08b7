"""The training loop, from the assignment to the last word. Read it from the top to the bottom.

What one step is, and what the workers agree on in it, is in trainer.py.
"""

import statistics
import time
from typing import Literal

import structlog

from services.executor.worker.changes import Changes
from services.executor.worker.channel import Channel
from services.executor.worker.device import MemoryExceeded
from services.executor.worker.groups import PeerLost
from services.executor.worker.saving import Saving
from services.executor.worker.setting_up import set_up
from services.executor.worker.surroundings import at_home
from services.executor.worker.telemetry import Telemetry
from services.executor.worker.trainer import Trainer
from shared.messages.worker_channel import Assignment, Finished, Interrupted, Profiled, Started

log = structlog.get_logger()

_WARM_UP_ITERATIONS = 2
_MIN_MEASURED_ITERATIONS = 3
_TURN_S = 0.1  # between two ranks that would save the same


def run(assignment: Assignment, channel: Channel) -> None:
    """Train, or measure, until done, told to stop, or gone. Raises TrainingFailed, PeerLost, Superseded or
    whatever the user's code raises."""
    born_s = time.monotonic()
    with at_home(assignment), Telemetry(channel) as telemetry:
        trainer, handed = set_up(assignment, channel, telemetry)
        channel.begin_training()
        if handed is None:
            channel.send(Started(iteration=trainer.iteration))
        log.info("training_started", iteration=trainer.iteration, world_size=assignment.world_size)
        if assignment.purpose == "profile":
            try:
                _measure(trainer, assignment, channel)
            except (
                MemoryExceeded
            ) as exceeded:  # nothing is to be kept: another generation measures smaller ones
                log.warning("interrupted", reason=str(exceeded))
                size = exceeded.micro_batch_size
                channel.send(Interrupted(iteration=trainer.iteration, micro_batch_size=size))
                channel.wait_for_stop()
        else:
            _train(trainer, assignment, channel, Changes(trainer, channel, handed, since_s=born_s))


def _train(trainer: Trainer, assignment: Assignment, channel: Channel, changes: Changes) -> None:
    saving, saved_at_s = Saving(channel), time.monotonic()
    first = trainer.iteration
    while True:
        try:
            if trainer.evaluation_is_due():
                trainer.evaluate()
            if (condition := trainer.condition_met()) is not None:
                return _finish(trainer, saving, channel, condition)
            due = trainer.iteration > first and time.monotonic() - saved_at_s >= assignment.checkpoint_every_s
            if trainer.checkpoints and due:
                saving.begin(trainer.checkpoints, trainer.iteration, trainer.state())
                saved_at_s = time.monotonic()
            stop, switch = changes.step(stop=channel.stop_requested)
            if trainer.iteration == first + 1:  # optimizers get their state in the first step
                trainer.check_state()
            if stop:
                return _stop(trainer, saving)
            if switch:
                changes.go_over()
        except (PeerLost, MemoryExceeded) as cause:
            if not changes.survive(cause.with_traceback(None)):  # its frames hold the step's memory
                return _stop_alone(trainer, saving)
        if changes.left:
            return log.info("left_at_boundary", iteration=trainer.iteration)


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


def _measure(trainer: Trainer, assignment: Assignment, channel: Channel) -> None:
    """Median speed after a short warm-up. Rank 0's clock decides when it is known well enough."""

    def enough() -> bool:
        return len(step_times_s) >= _MIN_MEASURED_ITERATIONS and (
            sum(step_times_s) >= assignment.profile_min_s
            or len(step_times_s) >= assignment.profile_max_iterations
        )

    step_times_s: list[float] = []
    for _ in range(_WARM_UP_ITERATIONS):
        if trainer.step(stop=channel.stop_requested).stop:
            return
    trainer.check_state()
    stopping = False
    while not stopping:
        began_s = time.monotonic()
        stopping = trainer.step(stop=channel.stop_requested or (trainer.is_rank_0 and enough())).stop
        step_times_s.append(time.monotonic() - began_s)
    trainer.members.leave()
    if trainer.is_rank_0 and enough():
        rate = 1 / max(statistics.median(step_times_s), 1e-6)
        channel.send(Profiled(iterations_per_s=rate, dataset_size=trainer.dataset_size))
        log.info("profiled", iterations_per_s=round(rate, 3), iterations=len(step_times_s))
