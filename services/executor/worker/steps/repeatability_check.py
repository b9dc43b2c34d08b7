"""Checks that a step depends on declared state only: runs the first step twice from the same state.

State that a forward pass keeps in plain attributes of the model is in no checkpoint, does not reach a joining worker,
and virtual nodes share it in an order that depends on the number of workers. Such a job would silently end with other
weights at each number of workers. A cache that does not change the loss passes. A schedule in an attribute of the job
fails although it does not change the loss so early.
"""

import pickle
from collections.abc import Mapping
from typing import Any

import structlog
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from elasticflow.services.executor.worker.elastic.nested_tensors import flatten, unflatten
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript
from elasticflow.services.executor.worker.steps.trainer import Trainer
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed

_ATTRIBUTES_OF_MODULE = frozenset(vars(nn.Module()))

_LONG_ITERATIONS = 100  # one more is far less than the margin of a promise

log = structlog.get_logger()


def needs_repeatability_check(trainer: Trainer) -> bool:
    """Whether no profiling run may have checked this code: a job with a model name may have a known speed.

    A script keeps state of a step that cannot be rolled back, and a short job's promise has no time for another step.
    """
    if isinstance(trainer.function, ElasticScript) or trainer.spec.max_iterations < _LONG_ITERATIONS:
        return False
    return trainer.iteration == 0 and bool(trainer.spec.model_name)


def run_first_step_twice(trainer: Trainer, *, stop: bool) -> bool:
    """Run the step, reload its initial state, and run it again. Returns whether all workers stop after it.

    Raises TrainingFailed, naming attributes, if the second loss differs and they have changed.
    """
    beginning, before = _copy_of(trainer.state()), _plain_attributes(trainer.model)
    if trainer.step(stop=stop).stop:
        return True
    trainer.settle()
    first, after = trainer.metrics.get("loss"), _plain_attributes(trainer.model)
    schedules = _schedules(trainer)
    trainer.load_state(beginning)
    if trainer.step(stop=stop).stop:
        return True
    trainer.settle()
    stepped = sorted(name for name, step in _schedules(trainer).items() if step != schedules.get(name))
    if stepped:
        raise TrainingFailed(
            f"train() steps the schedule in {', '.join(stepped)} for every part of a batch, and a worker that joins "
            "later starts it anew; let stateful() return it"
        )
    if trainer.metrics.get("loss") != first:
        changed = sorted(name for name in after if after[name] != before.get(name))
        if changed:
            raise TrainingFailed(
                f"the same step gave another loss when it was repeated: the model keeps {', '.join(changed)}, "
                "which is neither parameter nor buffer, from step to step; declare it with register_buffer()"
            )
        log.warning("step_not_repeatable", first=first, again=trainer.metrics.get("loss"))
    return False


def _copy_of(state: Mapping[str, Any]) -> Any:
    tensors: list[torch.Tensor] = []
    structure = flatten(dict(state), tensors)
    return unflatten(structure, [tensor.detach().to("cpu", copy=True) for tensor in tensors])


def _schedules(trainer: Trainer) -> dict[str, int]:
    """Positions of those that are no state of the job, by the name of the attribute."""
    registered = [id(each) for each in trainer.additional.objects.values()]
    return {
        f"self.{name}": value.last_epoch
        for name, value in vars(trainer.function).items()
        if isinstance(value, LRScheduler) and id(value) not in registered
    }


def _plain_attributes(model: nn.Module) -> dict[str, bytes]:
    """Attributes that no state_dict holds, by module and name, pickled; those that cannot be pickled are skipped."""
    found: dict[str, bytes] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in _ATTRIBUTES_OF_MODULE:
                continue
            try:
                found[f"{path}.{name}".lstrip(".")] = pickle.dumps(_detached(value))
            except Exception as error:  # pickle raises whatever the object does
                log.debug("attribute_not_compared", name=name, reason=str(error))
    return found


def _detached(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
