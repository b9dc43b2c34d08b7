"""Lightning, as `lightning` or `pytorch_lightning`: `elastic_trainer(trainer)` before `trainer.fit(module)`."""

from __future__ import annotations

import logging
import math
import sys
from abc import ABC
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from elasticflow.adapters.mlflow import MLflow
from elasticflow.adapters.tracking import Tracker, with_trackers
from elasticflow.adapters.training_libraries import (
    ONE_PROCESS,
    SCALE,
    Rule,
    Unsupported,
    named_by_class,
    refuse,
    replace_accumulation,
)
from elasticflow.adapters.wandb import WeightsAndBiases
from elasticflow.sdk.script import require_state, running_worker
from elasticflow.shared.training_interface import OnStep, is_stateful


def elastic_trainer(trainer: Any, *further: Any, virtual_nodes: int = 0, on_step: OnStep | None = None) -> Any:
    """Make the training of a Lightning `Trainer` elastic; returns the trainer.

        trainer = elastic_trainer(Trainer(max_epochs=10))
        trainer.fit(module, train_loader)

    further: other state with `state_dict()` and `load_state_dict()`. Callbacks that have both methods of their own are
    among it.

    The job's global batch replaces the loader's batch size and accumulate_grad_batches, and its checkpoints replace
    the trainer's. `estimated_stepping_batches` and `num_training_batches` are those of the job. Sinks of the job
    replace `MLFlowLogger` and `WandbLogger`. Other loggers and the progress bar are off: every worker would have them.
    Code after `fit()` runs in one process. Raises Unsupported.
    """
    require_state("elastic_trainer()", further)
    worker = running_worker()
    if worker is None:
        return trainer
    _refuse_unsupported(trainer)
    sink, trackers = with_trackers(on_step, _trackers_of(trainer.loggers))
    _turn_off(trainer)
    replace_accumulation(trainer, "accumulate_grad_batches", worker.global_batch_size)
    attach = partial(worker.attach, virtual_nodes=virtual_nodes, on_step=sink, library=_HeldState(trainer))
    overrides = {trainer: _ElasticTrainer, trainer.fit_loop: _ElasticFitLoop, trainer.strategy: _ElasticStrategy}
    for each, override in overrides.items():
        kind = type(each)
        each.__class__ = type(kind.__name__, (override, kind), {})
    trainer.strategy.job = _TrainedJob(trainer, worker, attach, further, trackers)
    return trainer


def _trackers_of(loggers: Sequence[Any]) -> list[Tracker]:
    """The library's loggers would make a run in each worker, and another one after each resize."""
    found: list[Tracker] = []
    for each in loggers:
        if is_of_class(each, ("MLFlowLogger",)):
            found.append(MLflow(each._tracking_uri or "", experiment=each._experiment_name or ""))
        elif is_of_class(each, ("WandbLogger",)):
            found.append(WeightsAndBiases(each._wandb_init["project"] or "", entity=each._wandb_init["entity"] or ""))
    return found


def _turn_off(trainer: Any) -> None:
    """Turn off what would write in each worker. A progress bar fails when it estimates the end of a loader without
    one."""
    of_loggers = [each for each in trainer.callbacks if is_of_class(each, _OF_LOGGERS)]
    off = [*trainer.checkpoint_callbacks, *of_loggers]
    loggers = [each for each in trainer.loggers if not is_of_class(each, _TRACKED)]
    if named := [type(each).__name__ for each in (*off, *loggers)]:
        logging.getLogger(__name__).warning(
            "%s: off in a job, whose every worker would write. The job's own checkpoints replace those of the trainer: "
            "save the model after fit(). elastic_trainer(trainer, on_step=...) gets the metrics of the job.",
            ", ".join(named),
        )
    trainer.callbacks = [each for each in trainer.callbacks if each not in (*off, trainer.progress_bar_callback)]
    trainer.loggers = []


def _refuse_unsupported(trainer: Any) -> None:
    refuse(
        Rule(trainer.precision == "16-mixed", 'precision="16-mixed"', SCALE, 'set precision="bf16-mixed"'),
        Rule(
            trainer.world_size > 1 or type(trainer.strategy).__name__ != "SingleDeviceStrategy",
            f"strategy {type(trainer.strategy).__name__} with {trainer.world_size} processes",
            ONE_PROCESS,
            'use devices=1 and strategy="auto"',
        ),
        Rule(
            trainer.limit_train_batches not in (None, 1.0),
            "limit_train_batches",
            "a job reads each sample once an epoch",
            "limit the data set",
        ),
        Rule(
            bool(trainer.reload_dataloaders_every_n_epochs),
            "reload_dataloaders_every_n_epochs",
            "a job has one data set",
            "let its loader have a sampler with set_epoch()",
        ),
        *(
            Rule(is_of_class(each, (name,)), type(each).__name__, reason, "remove it")
            for each in trainer.callbacks
            for name, reason in _CALLBACKS.items()
        ),
        *(
            Rule(
                each.monitor is not None,
                f'{type(each).__name__} with monitor="{each.monitor}"',
                "the trainer saves no checkpoints",
                "remove it, and save the model after fit()",
            )
            for each in trainer.checkpoint_callbacks
        ),
        Rule(
            trainer.val_check_interval not in (None, 1.0),
            "val_check_interval",
            "workers join within an epoch",
            "set check_val_every_n_epoch",
        ),
    )


_CALLBACKS = {
    "GradientAccumulationScheduler": "the job's global batch stays the same",
    "StochasticWeightAveraging": "its average does not survive a resize",
    "BaseFinetuning": "workers that join would lack the parameter groups that it adds",
    "ModelPruning": "workers that join would lack what it has pruned",
    "BatchSizeFinder": "the job divides its global batch by itself",
    "LearningRateFinder": "it trains outside of the job's steps",
    "Timer": "the end of the training would depend on the speed of each worker",
}
_TRACKED = ("MLFlowLogger", "WandbLogger")
_OF_LOGGERS = ("LearningRateMonitor", "DeviceStatsMonitor")  # which fail without a logger


def is_of_class(each: Any, names: Sequence[str]) -> bool:
    """Whether it is of a class of the library, or of one derived from it: users may have others of these names."""
    return any(kind.__name__ in names and "lightning" in kind.__module__ for kind in type(each).__mro__)


class _HeldState:
    """What lives in a trainer beside its module."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def objects(self) -> dict[str, object]:
        trainer = self._trainer
        return {"trainer": trainer, "datamodule": trainer.datamodule, **named_by_class(trainer.callbacks)}

    def counters(self) -> dict[str, tuple[object, Sequence[str]]]:
        return {}

    def records(self) -> dict[str, tuple[object, Sequence[str]]]:
        return {}


def _state_of_callbacks(callbacks: Sequence[Any]) -> Iterator[Any]:
    """Those that have a state, and the averages that Lightning's own callbacks make."""
    for each in callbacks:
        kinds = [kind for kind in type(each).__mro__ if "state_dict" in vars(kind)]
        if kinds and kinds[0].__name__ != "Callback":
            yield each
        if is_stateful(average := getattr(each, "_average_model", None)):
            yield average


class _TrainedJob:
    """The trainer's part in a job. attach: gives its objects to the worker. trackers: get the metrics of validations.
    present: the step that is computed."""

    def __init__(
        self,
        trainer: Any,
        worker: Any,
        attach: Callable[..., Any],
        further: Sequence[Any],
        trackers: Sequence[Tracker],
    ) -> None:
        self.trainer = trainer
        self._trackers = trackers
        self._further = further
        self.present: Any = None
        self.loader: Any = None
        self.steps: Any = None
        self._worker = worker
        self._attach = attach
        self._max_epochs = self._max_iterations = math.inf
        # classes of callbacks and schedules, each with the metric that it follows, until the first step
        self._monitors: list[tuple[str, str]] = []

    def take_loader(self, loader: Any) -> _JobLoader:
        if self.loader is not None:
            raise Unsupported("several loaders for training", "a job reads one data set", "use a ConcatDataset")
        self.loader = loader
        return _JobLoader(self, loader)

    @cached_property
    def epochs(self) -> Any:
        """The epochs of the training data. The trainer may ask before its optimizers are made."""
        if self.loader is None:
            self.trainer.fit_loop.setup_data()
        return self._worker.epochs_of(self.loader)

    def num_steps(self) -> float:
        """That the job takes: up to a limit of the trainer or --iterations."""
        trainer = self.trainer
        epochs = None if trainer.max_epochs in (None, -1) else self.epochs
        of_epochs = math.inf if epochs is None else epochs.iterations(trainer.max_epochs)
        of_steps = math.inf if trainer.max_steps in (None, -1) else trainer.max_steps
        return min(of_epochs, of_steps, self._worker.length.max_iterations or math.inf)

    def begin(self) -> None:
        """Attach what the trainer has made, and let only the job's iteration end its loops."""
        if self.steps is not None:
            return
        trainer, fit_loop = self.trainer, self.trainer.fit_loop
        if not trainer.lightning_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise Unsupported(
                "manual optimization, or several optimizers,", "a step has one backward pass", "write an ElasticJob"
            )
        self._monitors = [
            (type(each).__name__, each.monitor)
            for each in trainer.callbacks
            if getattr(each, "monitor", None) is not None
        ] + [
            (type(config.scheduler).__name__, config.monitor)
            for config in trainer.strategy.lr_scheduler_configs
            if config.reduce_on_plateau
        ]
        schedules = [config.scheduler for config in trainer.strategy.lr_scheduler_configs]
        held = (*schedules, *self._further, *_state_of_callbacks(trainer.callbacks))
        self.steps = self._attach(self.loader, trainer.lightning_module, trainer.optimizers[0], *held)
        max_epochs = None if fit_loop.max_epochs == -1 else fit_loop.max_epochs
        max_steps = None if fit_loop.max_steps == -1 else fit_loop.max_steps
        self.steps.ends_after(max_steps=max_steps, max_epochs=max_epochs)
        if max_epochs is not None:
            self._max_epochs = max_epochs
        if max_steps is not None:
            self._max_iterations = max_steps
        fit_loop.max_epochs = fit_loop.epoch_loop.max_steps = -1
        fit_loop.min_epochs = fit_loop.epoch_loop.min_steps = 0

    def begin_step(self, step: Any) -> None:
        """Set the trainer's counters to the job's position: a worker joins in the middle, and a step may repeat."""
        self.present = step
        trainer, fit_loop = self.trainer, self.trainer.fit_loop
        epochs, batches = fit_loop.epoch_progress.current, fit_loop.epoch_loop.batch_progress.current
        epochs.ready = epochs.started = self.steps.epoch + 1
        epochs.processed = epochs.completed = self.steps.epoch
        batches.ready = batches.started = batches.processed = batches.completed = self.steps.iteration_in_epoch
        optimization = fit_loop.epoch_loop.automatic_optimization.optim_progress
        optimization.optimizer.step.total.completed = self.steps.iteration
        fetcher = fit_loop._data_fetcher
        fetcher.length = fetcher.fetched + 1 if self.steps.step_ends_epoch else sys.maxsize
        trainer.val_check_batch = math.inf  # at the end of an epoch

    def end_step(self) -> None:
        if self._monitors:
            self._require_whole_batch_in_monitors()
        steps = self.steps
        self.trainer.should_stop |= steps.iteration >= self._max_iterations or steps.epoch >= self._max_epochs

    def note_validation(self) -> None:
        """What the module has logged of this epoch's validation, if there was one."""
        fit_loop = self.trainer.fit_loop
        if self._trackers and fit_loop.epoch_loop._should_check_val_epoch():
            names = {each.meta.name for each in fit_loop.epoch_loop.val_loop._results.values()}
            found = {name: self.trainer.callback_metrics[name] for name in names & self.trainer.callback_metrics.keys()}
            for tracker in self._trackers:
                tracker.note(self.steps.iteration, found)

    def _require_whole_batch_in_monitors(self) -> None:
        """What training_step() logs is of the parts that this worker computes: another number of workers would stop, or
        lower the rate, at another step. Raises Unsupported."""
        results = self.trainer.fit_loop.epoch_loop._results.values()
        logged = {f"{each.meta.name}{suffix}" for each in results for suffix in ("", "_step", "_epoch")}
        refuse(
            *(
                Rule(
                    metric in logged,
                    f'{of} with monitor="{metric}"',
                    "the module logs it in training_step, of which each worker computes a part",
                    "let it monitor a metric of the validation",
                )
                for of, metric in self._monitors
            )
        )
        self._monitors = []


class _JobLoader:
    """Stands in place of the trainer's loader for training."""

    def __init__(self, job: _TrainedJob, loader: Any) -> None:
        self._job = job
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for step in self._job.steps:
            self._job.begin_step(step)
            yield step
        self._job.trainer.should_stop |= self._job.steps.has_ended

    def __len__(self) -> int:
        """A length that never ends: without one, the trainer would fetch a step before the present one is computed."""
        return sys.maxsize

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _ElasticTrainer:
    """What a module asks to build its schedule, from the job instead of the endless loader."""

    strategy: Any

    @property
    def estimated_stepping_batches(self) -> float:
        return self.strategy.job.num_steps()

    @property
    def num_training_batches(self) -> float:
        job = self.strategy.job
        if job.loader is None:
            return super().num_training_batches  # pyright: ignore[reportAttributeAccessIssue]
        return math.inf if job.epochs is None else job.epochs.iterations(1)


class _ElasticFitLoop:
    trainer: Any

    def setup_data(self) -> None:
        """The job begins with the first epoch, when the optimizers are made."""
        super().setup_data()  # pyright: ignore[reportAttributeAccessIssue]
        if self.trainer.strategy.optimizers:
            self.trainer.strategy.job.begin()

    def on_advance_end(self) -> None:
        self.trainer.strategy.job.note_validation()
        super().on_advance_end()  # pyright: ignore[reportAttributeAccessIssue]

    def on_run_end(self) -> None:
        self.trainer.strategy.job.steps.end()
        super().on_run_end()  # pyright: ignore[reportAttributeAccessIssue]


class _ElasticStrategy(ABC):  # as a strategy: else Python refuses to change the class of an object
    """Overrides of a strategy for one device: a batch of the trainer is a step, with several parts."""

    job: _TrainedJob
    lightning_module: Any
    precision_plugin: Any

    def process_dataloader(self, dataloader: Any) -> Any:
        made = super().process_dataloader(dataloader)  # pyright: ignore[reportAttributeAccessIssue]
        return self.job.take_loader(made) if self.job.trainer.training else made

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """A step stays as it is; its parts follow in `training_step`."""
        if batch is self.job.present:
            return batch
        return super().batch_to_device(batch, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def training_step(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        del step
        part = self.batch_to_device(self._part)
        self.job.trainer._logger_connector.on_batch_start(part)  # the size of what the module logs
        return super().training_step(part, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> None:
        """The closure computes one part; clipping and the optimizer's step follow once."""
        del model
        for part in self.job.present:
            self._part = part
            closure()
        closure._result.loss = self.job.present.mean_loss  # pyright: ignore[reportFunctionMemberAccess]
        self.precision_plugin._after_closure(self.lightning_module, optimizer)
        optimizer.step(**kwargs)
        self.job.end_step()
