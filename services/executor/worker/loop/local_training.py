"""A job in the process of its user: one worker without executor, peers or checkpoints (docs/adr/0093).

It steps as a worker that is alone does, so it ends with the same bits as in a pool. The loop runs in the main thread,
and the calls of train() in cooperative threads, one at a time: breakpoints and debuggers work in both.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from elasticflow.services.executor.worker.checkpoint.files import write_model
from elasticflow.services.executor.worker.engine.step_metrics import MetricFeed, running_job_of
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.engine.training_function import fixed_virtual_nodes, training_function_of
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.loop.worker_setup import set_up, worker_engine
from elasticflow.services.executor.worker.process.device import DeviceMemoryExceeded
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.users_code import enter_environment
from elasticflow.services.executor.worker.process.working_folder import name_artifact_folder
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker, Warned
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.messages.worker_protocol.training_tasks import FromManager
from elasticflow.shared.training_interface import show_job

Condition = Literal["max_iterations", "metric"]
OnStep = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """A job that has met a condition. The model is on its device. virtual_nodes: 0 in the fast mode."""

    iteration: int
    condition: Condition
    metrics: Mapping[str, float]
    model: nn.Module
    virtual_nodes: int


def device_here() -> Literal["cpu", "cuda"]:
    """The device of a pool on this machine."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def train_here(
    job_class: type[Any],
    assignment: Assignment,
    *,
    on_step: OnStep,
    stops: Callable[[], bool],
    warn: Callable[[str], None],
) -> LocalTraining:
    """Train to the end; the model is in the assignment's folder then. stops: asked between two steps.

    Raises KeyboardInterrupt if it is stopped, TrainingFailed, and what the user's code raises.
    """
    with _settings_of_process():
        assignment = enter_environment(assignment)
        name_artifact_folder(folder := Path(assignment.checkpoint_dir))  # the job works where its user does
        show_job(running_job_of(assignment))  # until the block ends
        function = training_function_of(job_class, assignment.spec)
        function.data_workers = 0  # pyright: ignore[reportAttributeAccessIssue]  # reads here, where a debugger sees it
        link = _NoExecutor(warn)
        try:
            trainer, *_ = set_up(assignment, link, Telemetry(link), worker_engine, function)
            condition = _train(trainer, MetricFeed(function.on_step, folder), on_step, stops)
        except DeviceMemoryExceeded as exceeded:
            raise TrainingFailed(f"{exceeded}; a pool would compute smaller micro-batches") from exceeded
        write_model(folder, trainer.iteration, trainer.state()["model"])
        metrics = trainer.finite_metrics()
        return LocalTraining(
            iteration=trainer.iteration,
            condition=condition,
            metrics=metrics,
            model=trainer.model,
            virtual_nodes=fixed_virtual_nodes(function, trainer.members.virtual_nodes),
        )


def _train(trainer: Trainer, feed: MetricFeed, on_step: OnStep, stops: Callable[[], bool]) -> Condition:
    """The condition that ended it."""
    while True:
        if trainer.evaluation_is_due():
            trainer.evaluate()
        if (condition := trainer.condition_met()) is not None:
            break
        feed.feed(trainer.iteration, trainer.finite_metrics())
        if stops():
            raise KeyboardInterrupt
        trainer.step(stop=False)
        if trainer.iteration == 1:  # optimizers create their state in the first step
            trainer.check_state()
        on_step(trainer.iteration, trainer.finite_metrics())
    trainer.evaluate_finally()
    feed.feed(trainer.iteration, trainer.finite_metrics())
    feed.end()
    return condition


class _NoExecutor:
    """The replacement of a worker's channel."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn

    def send(self, message: FromWorker | FromManager) -> None:
        if isinstance(message, Warned):
            self._warn(message.warning)

    def receive_rendezvous_address(self, generation: int, timeout_s: float) -> str:
        raise AssertionError("a worker that is alone meets no others")


@contextmanager
def _settings_of_process() -> Iterator[None]:
    """A debugger of this thread also traces the threads of train(). What a worker sets for good is undone."""
    traced, num_threads, environment = threading.gettrace(), torch.get_num_threads(), dict(os.environ)
    if sys.gettrace() is not None:
        threading.settrace(sys.gettrace())  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        show_job(None)
        threading.settrace(traced)  # pyright: ignore[reportArgumentType]
        torch.set_num_threads(num_threads)
        os.environ.clear()
        os.environ.update(environment)
