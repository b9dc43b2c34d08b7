"""The training loop of one worker, from its assignment to its end; read it from top to bottom.

trainer.py has what it runs, and training_step.py one step.
"""

import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elasticflow.services.executor.worker.checkpoint.writer import CheckpointWriter
from elasticflow.services.executor.worker.engine.step_metrics import MetricFeed, running_job_of
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.group.peer_loss import (
    PeerLossWatchdog,
    PeerLost,
    ThreadAbandoned,
    end_as_lost_peer,
)
from elasticflow.services.executor.worker.group.state_transfer import StateTransfer
from elasticflow.services.executor.worker.loop.repeatability_check import (
    needs_repeatability_check,
    run_first_step_twice,
)
from elasticflow.services.executor.worker.loop.speed_measurement import measure_speed
from elasticflow.services.executor.worker.loop.switch import GenerationSwitcher
from elasticflow.services.executor.worker.loop.worker_setup import MakeEngine, set_up, worker_engine
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.device import DeviceMemoryExceeded, prepare_thread
from elasticflow.services.executor.worker.process.exit_handlers import AT_END_S, EXIT_HANDLERS
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.working_folder import in_job_folder
from elasticflow.services.executor.worker.scripts import torchrun_script
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript
from elasticflow.services.executor.worker.scripts.script_environment import (
    SINGLE_PROCESS_ENVIRONMENT,
    use_own_rendezvous,
)
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.messages.worker_protocol.from_worker import Finished, Interrupted, Profiled, Started
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.training_interface import show_job

_RANK_DELAY_S = 0.1  # between two survivors that would write the same checkpoint

RunInNewThread = Callable[[Callable[[], None]], None]  # the process ends when the work does


def run(assignment: Assignment, channel: Channel, run_in_new_thread: RunInNewThread) -> None:
    """Train, or measure the speed, until the job ends, or the executor stops or switches this worker away.

    Raises TrainingFailed, PeerLost, Superseded or any error of the user's code.
    """
    if assignment.purpose == "train":
        EXIT_HANDLERS.begin()
    with in_job_folder(assignment) as assignment, Telemetry(channel, assignment.timeouts) as telemetry:
        if assignment.spec.entry == TORCHRUN:
            speed = torchrun_script.run(assignment, channel, telemetry)
        else:
            use_own_rendezvous(SINGLE_PROCESS_ENVIRONMENT)
            speed = None
            if assignment.purpose == "profile":
                speed = _profile(assignment, channel, telemetry)
            else:
                train(assignment, channel, telemetry, run_in_new_thread)
    if speed is not None:  # the files of the profiling run are deleted: the executor may kill it now
        channel.send(speed)


def _begin(
    assignment: Assignment, channel: Channel, telemetry: Telemetry, make_engine: MakeEngine = worker_engine
) -> tuple[Trainer, StateTransfer | None]:
    show_job(running_job_of(assignment))
    trainer, transfer, lost_checkpoints = set_up(assignment, channel, telemetry, make_engine)
    channel.begin_training()
    if transfer is None:
        channel.send(Started(iteration=trainer.iteration, lost_checkpoints=lost_checkpoints))
    log.info("training_started", iteration=trainer.iteration, world_size=assignment.plan.world_size)
    return trainer, transfer


def _profile(assignment: Assignment, channel: Channel, telemetry: Telemetry) -> Profiled | None:
    """The speed, on rank 0."""
    trainer, _ = _begin(assignment, channel, telemetry)
    try:
        return measure_speed(trainer, channel)
    except DeviceMemoryExceeded as exceeded:  # no state is kept: another generation measures smaller micro-batches
        log.warning("interrupted", reason=str(exceeded))
        size = exceeded.micro_batch_size
        channel.send(Interrupted(iteration=trainer.iteration, micro_batch_size=size))
        channel.wait_for_stop()
        return None


def train(
    assignment: Assignment,
    channel: Channel,
    telemetry: Telemetry,
    run_in_new_thread: RunInNewThread,
    *,
    make_engine: MakeEngine = worker_engine,
    is_profiled: bool = True,
) -> None:
    """is_profiled: whether jobs like this one are profiled before, which checks their code."""
    began_s = time.monotonic()
    trainer, transfer = _begin(assignment, channel, telemetry, make_engine)
    switcher = GenerationSwitcher(trainer, channel, transfer, began_s=began_s)
    is_unchecked = needs_repeatability_check(trainer) if is_profiled else trainer.iteration == 0
    loop = _TrainingLoop(trainer, channel, switcher, transfer is None and is_unchecked)

    context = copy_context()  # with the settings of torch's compiler

    def resume(lost: PeerLost) -> None:
        if trainer.gang is not None:
            end_as_lost_peer("its thread waits for another gang, and its own gang for the thread")
        run_in_new_thread(lambda: context.copy().run(loop.resume_in_new_thread, lost))

    PeerLossWatchdog(channel, lambda: switcher.groups, resume, grace_s=assignment.timeouts.poll_interval_s).start()
    loop.run()


@dataclass
class _TrainingLoop:
    trainer: Trainer
    channel: Channel
    switcher: GenerationSwitcher
    checks_repeatability: bool  # runs the first step twice

    def __post_init__(self) -> None:
        self._writer = CheckpointWriter(self.channel)
        self._feed = MetricFeed(self.trainer.function.on_step, Path(self.trainer.assignment.checkpoint_dir))
        self._checkpointed_at_s = time.monotonic()
        self._is_checkpoint_agreed = False
        self._first = self.trainer.iteration

    def run(self, cause: PeerLost | DeviceMemoryExceeded | None = None) -> None:
        """Run to the end. cause: why this worker is at a step boundary and waits for a switch."""
        is_done = False
        while not is_done:
            try:
                is_done = self._step() if cause is None else self._await_switch(cause)
                cause = None
            except (PeerLost, DeviceMemoryExceeded) as error:
                if not self.trainer.roll_back():
                    raise
                if isinstance(error, DeviceMemoryExceeded) and isinstance(self.trainer.function, ElasticScript):
                    self._stop_failed_script(error)
                    raise
                cause = error.with_traceback(None)  # its frames hold the step's memory
            except ThreadAbandoned:
                threading.Event().wait()  # forever: another thread ends the process

    def resume_in_new_thread(self, lost: PeerLost) -> None:
        """Replaces a thread that the watchdog has abandoned."""
        prepare_thread(self.trainer.device)
        if not self.trainer.roll_back():
            raise lost
        self.run(lost)

    def _step(self) -> bool:
        """Evaluate and checkpoint if due, then one step. Returns whether this worker is done."""
        trainer = self.trainer
        if trainer.evaluation_is_due():
            trainer.evaluate()
        if (condition := trainer.condition_met()) is not None:
            _finish(trainer, self._writer, self._feed, self.channel, condition)
            return True
        if trainer.checkpoints and trainer.is_rank_0:
            self._feed.feed(trainer.iteration, trainer.finite_metrics())
        if self._is_checkpoint_agreed:
            self._is_checkpoint_agreed = False
            self._write_checkpoint()
        if self.checks_repeatability:
            self.checks_repeatability = False
            stop, switch = run_first_step_twice(trainer, stop=self.channel.stop_requested), False
        else:
            agreement = self.switcher.step(stop=self.channel.stop_requested, wants_checkpoint=self._checkpoint_is_due)
            stop, switch, self._is_checkpoint_agreed = agreement.stop, agreement.switch, agreement.checkpoint
        if trainer.iteration == self._first + 1:  # optimizers create their state in the first step
            trainer.check_state()
        if stop:
            _stop(trainer, self._writer, keeps_state=self.channel.keeps_state)
            return True
        if switch:
            self.switcher.switch()
            self._is_checkpoint_agreed = False  # joining workers do not know of it
        return self._has_left()

    def _checkpoint_is_due(self) -> bool:
        """Rank 0 asks for all: each worker agrees on the metrics in it, and may have a part of the state to write."""
        if not self.trainer.is_rank_0:
            return False
        elapsed_s = time.monotonic() - self._checkpointed_at_s
        return self._writer.is_due or elapsed_s >= self._writer.interval_s(self.trainer.assignment.checkpoint_every_s)

    def _write_checkpoint(self) -> None:
        trainer = self.trainer
        trainer.settle()
        if trainer.checkpoints:
            has_part, state = trainer.sharded is not None or trainer.gang is not None, trainer.state()
            self._writer.write_in_background(trainer.checkpoints, trainer.iteration, state, must_write=has_part)
            self._checkpointed_at_s = time.monotonic()

    def _await_switch(self, cause: PeerLost | DeviceMemoryExceeded) -> bool:
        """Returns whether this worker is done."""
        self.switcher.report_interrupted(cause)
        self._is_checkpoint_agreed = False
        if self.switcher.await_switch():
            return self._has_left()
        if self.channel.keeps_state:
            _stop_without_peers(self.trainer, self._writer)
        return True

    def _stop_failed_script(self, cause: DeviceMemoryExceeded) -> None:
        """An error in its loop ended the script, so another process must continue."""
        self.switcher.report_interrupted(cause)
        _stop_without_peers(self.trainer, self._writer)

    def _has_left(self) -> bool:
        if self.switcher.has_left:
            log.info("left_at_boundary", iteration=self.trainer.iteration)
        return self.switcher.has_left


def _stop(trainer: Trainer, writer: CheckpointWriter, *, keeps_state: bool) -> None:
    trainer.settle()
    trainer.members.leave()
    if trainer.checkpoints and keeps_state:
        writer.write_now(trainer.checkpoints, trainer.iteration, trainer.state())
    log.info("stopped_at_boundary", iteration=trainer.iteration)


def _stop_without_peers(trainer: Trainer, writer: CheckpointWriter) -> None:
    """Stop after the loss of peers: the first survivor writes the state that all survivors have."""
    if trainer.sharded is not None or trainer.gang is not None:
        log.info("stopped_without_checkpoint", iteration=trainer.iteration)  # parts of others are missing
        return
    checkpoints = trainer.checkpoint_store()
    time.sleep(_RANK_DELAY_S * trainer.members.rank)
    if not checkpoints.has_written(trainer.iteration):
        writer.write_now(checkpoints, trainer.iteration, trainer.state())
    log.info("stopped_without_peers", iteration=trainer.iteration)


def _finish(
    trainer: Trainer,
    writer: CheckpointWriter,
    feed: MetricFeed,
    channel: Channel,
    condition: Literal["max_iterations", "metric"],
) -> None:
    trainer.evaluate_finally()
    if not trainer.checkpoints:
        return
    model_dir = Path(trainer.assignment.checkpoint_dir) if trainer.is_rank_0 else None
    writer.write_now(trainer.checkpoints, trainer.iteration, trainer.state(), model_dir=model_dir)
    if model_dir is None:
        return
    metrics = trainer.finite_metrics()
    feed.feed(trainer.iteration, metrics)
    feed.end()
    EXIT_HANDLERS.run(AT_END_S)
    channel.send(Finished(iteration=trainer.iteration, condition=condition, metrics=metrics))
    log.info("training_finished", iteration=trainer.iteration, condition=condition, **metrics)
