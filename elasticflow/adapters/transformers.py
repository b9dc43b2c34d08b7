"""Hugging Face Trainer: `elastic_trainer(trainer)` before `trainer.train()`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from elasticflow.adapters.mlflow import MLflow
from elasticflow.adapters.tracking import Tracker, with_trackers
from elasticflow.adapters.training_libraries import (
    ONE_PROCESS,
    SCALE,
    SHARDED,
    Rule,
    named_by_class,
    refuse,
    replace_accumulation,
)
from elasticflow.adapters.wandb import WeightsAndBiases
from elasticflow.sdk.script import SCRIPT_PROCESS_VARIABLE, require_state, running_worker
from elasticflow.shared.training_interface import OnStep, is_stateful


def _is_of_use(record: logging.LogRecord) -> bool:
    """Whether a warning of TrainingArguments holds in a job, whose workers have a process group of their own."""
    return SCRIPT_PROCESS_VARIABLE not in os.environ or "torch.distributed.launch" not in record.getMessage()


logging.getLogger("transformers.training_args").addFilter(_is_of_use)  # scripts make these before their trainer


def elastic_trainer(trainer: Any, *further: Any, virtual_nodes: int = 0, on_step: OnStep | None = None) -> Any:
    """Make the training of a `transformers.Trainer`, or of a subclass, elastic; returns the trainer.

        trainer = elastic_trainer(Trainer(model=model, args=args, train_dataset=train_dataset))
        trainer.train()

    further: other state with `state_dict()` and `load_state_dict()`, e.g. a momentum teacher. Callbacks that have both
    methods are among it.

    The job's global batch replaces per_device_train_batch_size and gradient_accumulation_steps, and its checkpoints
    replace the trainer's. The schedule is built for the job's steps. Sinks of the job replace report_to="mlflow" and
    "wandb". Code after `train()` runs in one process. Raises Unsupported.
    """
    require_state("elastic_trainer()", further)
    worker = running_worker()
    if worker is None:
        return trainer
    _refuse_unsupported(trainer)
    trainer.elastic_saves = _turn_off_saving(trainer.args)
    trainer.args.per_device_train_batch_size = trainer._train_batch_size = worker.global_batch_size
    replace_accumulation(trainer.args, "gradient_accumulation_steps", worker.global_batch_size)
    _print_lines(trainer)
    trainer.elastic_worker = worker
    kind = type(trainer)
    trainer.__class__ = type(kind.__name__, (_ElasticLoop, kind), {})
    sink, trackers = with_trackers(on_step, _trackers_in_place_of_reports(trainer))
    attach = partial(worker.attach, virtual_nodes=virtual_nodes, on_step=sink, library=_HeldState(trainer))
    trainer.callback_handler.callbacks.insert(0, _callback_of(trainer, attach, further, trackers))
    return trainer


_TRACKERS: dict[str, Callable[[], Tracker]] = {  # by name in report_to, with the library's own variables
    "mlflow": MLflow,
    "wandb": lambda: WeightsAndBiases(os.environ.get("WANDB_PROJECT", "huggingface")),
}


def _trackers_in_place_of_reports(trainer: Any) -> list[Tracker]:
    """The library's callbacks would make a run in each worker, and another one after each resize."""
    from transformers.integrations.integration_utils import (  # pyright: ignore[reportMissingImports]
        INTEGRATION_TO_CALLBACK,
    )

    names = list(trainer.args.report_to)
    for name in names:
        trainer.pop_callback(INTEGRATION_TO_CALLBACK[name])
    trainer.args.report_to = []
    return [_TRACKERS[name]() for name in names]


def _turn_off_saving(args: Any) -> bool:
    """Whether the trainer would have saved checkpoints."""
    saves = _save_strategy(args) != "no"
    args.save_strategy = "no"
    if saves:
        logging.getLogger(__name__).warning(
            'save_strategy is replaced by "no": the job\'s own checkpoints replace those of the trainer. Save the '
            "model after train()."
        )
    return saves


def _save_strategy(args: Any) -> str:
    return str(getattr(args.save_strategy, "value", args.save_strategy))


def _print_lines(trainer: Any) -> None:
    """Print what the trainer logs, a line each: in a log file a progress bar shares its line with what follows."""
    from transformers import PrinterCallback, ProgressCallback  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    trainer.args.disable_tqdm = True
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(PrinterCallback)


def _refuse_unsupported(trainer: Any) -> None:
    args = trainer.args
    refuse(
        Rule(bool(args.fp16), "fp16=True", SCALE, "set bf16=True"),
        Rule(bool(args.deepspeed), "deepspeed", ONE_PROCESS, SHARDED),
        Rule(bool(args.fsdp), "fsdp", ONE_PROCESS, SHARDED),
        Rule(args.world_size * max(args.n_gpu, 1) > 1, "more than one device", ONE_PROCESS, "use one"),
        Rule(
            args.load_best_model_at_end,
            "load_best_model_at_end",
            "the trainer saves no checkpoints",
            "evaluate after train()",
        ),
        Rule(
            _save_strategy(args) == "best",
            'save_strategy="best"',
            "the trainer saves no checkpoints",
            "remove it, and save the model after train()",
        ),
        *(
            Rule(
                name not in _TRACKERS,
                f'report_to="{name}"',
                "every worker would report",
                'set report_to="none", "mlflow" or "wandb", or pass on_step to elastic_trainer()',
            )
            for name in args.report_to
        ),
        Rule(
            args.include_num_input_tokens_seen not in (False, "no"),
            "include_num_input_tokens_seen",
            "a worker sees a part of the tokens",
            "remove it",
        ),
        Rule(
            args.auto_find_batch_size,
            "auto_find_batch_size",
            "the job divides batches that exceed the memory",
            "remove it",
        ),
    )


class _ElasticLoop:
    """Overrides of a trainer: one pass of its loop is one step of the job."""

    elastic_worker: Any
    elastic_saves: bool  # outside of a job

    def get_train_dataloader(self) -> Any:
        return _JobLoader(super().get_train_dataloader())  # pyright: ignore[reportAttributeAccessIssue]

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """Loops without an end: the number of steps ends the training, since steps may repeat after a crash."""
        _, _, *more = super().set_initial_training_values(args, dataloader)  # pyright: ignore[reportAttributeAccessIssue]
        return (sys.maxsize, sys.maxsize, *more)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the scheduler for the steps that the job takes, of those that the trainer plans."""
        steps = min(num_training_steps, self.elastic_worker.length.max_iterations or num_training_steps)
        if steps < num_training_steps:
            logging.getLogger(__name__).warning(
                "The trainer plans %d steps, but the job ends after --iterations %d: the learning-rate schedule is "
                "built for %d steps.",
                num_training_steps,
                steps,
                steps,
            )
        return super().create_scheduler(steps, optimizer)  # pyright: ignore[reportAttributeAccessIssue]

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """The next step, as the only batch of a pass. The loss is a mean over samples, whose number is fixed."""
        for step in epoch_iterator:
            return [step], None
        self.control.should_epoch_stop = True  # pyright: ignore[reportAttributeAccessIssue]
        return [], None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        for part in inputs:
            super().training_step(model, part)  # pyright: ignore[reportAttributeAccessIssue]
        return inputs.mean_loss

    def _determine_best_metric(self, *args: Any, **kwargs: Any) -> bool:
        """Note the best step also without checkpoints."""
        is_best = super()._determine_best_metric(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        if is_best and self.elastic_saves:
            self.state.best_global_step = self.state.global_step  # pyright: ignore[reportAttributeAccessIssue]
        return is_best

    def floating_point_ops(self, inputs: Any) -> int:
        """Unknown for a step of which other workers compute parts."""
        del inputs
        return 0


class _JobLoader:
    """Stands in place of the trainer's loader. steps: of the job, once the training has begun."""

    steps: Any

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _HeldState:
    """What lives in a trainer beside its model."""

    def __init__(self, trainer: Any) -> None:
        from transformers.trainer_callback import ExportableState  # pyright: ignore[reportMissingImports]

        self._trainer, self._exportable = trainer, ExportableState
        self._counted: dict[int, tuple[object, tuple[str, ...]]] = {}  # callbacks, with what counts in them, by id

    def objects(self) -> dict[str, object]:
        trainer = self._trainer
        callbacks = named_by_class(trainer.callback_handler.callbacks)
        return {"trainer": trainer, "compute_metrics": trainer.compute_metrics, **callbacks}

    def counters(self) -> dict[str, tuple[object, Sequence[str]]]:
        there = (each for each in self._trainer.callback_handler.callbacks if isinstance(each, self._exportable))
        best = ("best_metric", "best_global_step")
        counted = {name: (each, self._attributes_of(each)) for name, each in named_by_class(there).items()}
        return {"trainer.state": (self._trainer.state, best), **counted}

    def _attributes_of(self, callback: Any) -> Sequence[str]:
        if id(callback) not in self._counted:
            self._counted[id(callback)] = callback, tuple(callback.state().get("attributes", ()))
        return self._counted[id(callback)][1]

    def records(self) -> dict[str, tuple[object, Sequence[str]]]:
        return {"trainer.state": (self._trainer.state, ("log_history",))}


class _LoggedLoss:
    """The loss since the trainer has logged one, and since its training began."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        total, logged = float(trainer._total_loss_scalar), trainer._globalstep_last_logged
        return {"sum": trainer._tr_loss.detach(), "total": total, "logged": logged}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        trainer._tr_loss = state["sum"].to(trainer.args.device)
        trainer._total_loss_scalar, trainer._globalstep_last_logged = state["total"], state["logged"]


def _callback_of(trainer: Any, attach: Callable[..., Any], further: Sequence[Any], trackers: Sequence[Tracker]) -> Any:
    """Attaches the trainer to the job, and keeps its counters at the job's position. trackers: get what it logs."""
    from transformers import TrainerCallback  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    class JobPosition(TrainerCallback):
        _steps: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            loader = objects["train_dataloader"]
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # as it was before Accelerate
            callbacks = [each for each in trainer.callback_handler.callbacks if is_stateful(each)]
            held = (trainer.lr_scheduler, *further, *callbacks, _LoggedLoss(trainer))
            self._steps = loader.steps = attach(loader.loader, trainer.model_wrapped, optimizer, *held)
            self._steps.ends_after(max_steps=state.max_steps)
            state.global_step = self._steps.iteration

        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            """Set the counters before the trainer's own callback, which compares the step with the last one."""
            state.global_step, state.epoch = self._steps.iteration, self._steps.epochs_done

        def on_log(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if self._steps is None:  # it evaluates before it trains
                return
            for tracker in trackers:
                tracker.note(self._steps.iteration, objects.get("logs") or {})

        def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            self._steps.end()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if self._steps.has_ended:
                control.should_training_stop = True

    return JobPosition()
