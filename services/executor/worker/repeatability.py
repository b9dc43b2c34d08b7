"""Whether a step is a function of what is declared: the first one is done twice, from the same state, in a pre-run and
where there may have been none.

What a forward pass keeps in plain attributes of the model is in no checkpoint, reaches no newcomer, and is shared by
virtual nodes in the order in which a worker happens to carry them. Such a job would train to its end, to another end at
each number of workers, and nobody would know. A cache that does not change the loss is no such state. A schedule in an
attribute of the job is, and no loss shows it so early.
"""

import pickle
from collections.abc import Mapping
from typing import Any

import structlog
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from services.executor.worker.tensor_tree import put_together, take_apart
from services.executor.worker.trainer import Trainer
from services.executor.worker.training_function import TrainingFailed

_OF_TORCH = frozenset(vars(nn.Module()))

log = structlog.get_logger()


def first_step_twice(trainer: Trainer, *, stop: bool) -> bool:
    """All are back at its beginning in between, and one step on after it. Whether to stop after it. Raises
    TrainingFailed, naming attributes, where the same step had another loss and they have changed."""
    beginning, before = _copy_of(trainer.state()), _plain_attributes(trainer.model)
    if trainer.step(stop=stop).stop:
        return True
    first, after = trainer.metrics.get("loss"), _plain_attributes(trainer.model)
    schedules = _schedules(trainer.function)
    trainer.take_over(beginning)
    if trainer.step(stop=stop).stop:
        return True
    going_on = sorted(
        name for name, step in _schedules(trainer.function).items() if step != schedules.get(name)
    )
    if going_on:
        raise TrainingFailed(
            f"train() steps the schedule in {', '.join(going_on)} on every part of a batch, and a worker that "
            'comes later starts it anew; set group["lr"] of optimizer.param_groups by self.iteration instead'
        )
    if trainer.metrics.get("loss") != first:
        changed = sorted(name for name in after if after[name] != before.get(name))
        if changed:
            raise TrainingFailed(
                f"the same step came to another loss when it was done again: the model keeps {', '.join(changed)}, "
                "which is neither parameter nor buffer, from step to step; declare it with register_buffer()"
            )
        log.warning("step_not_repeatable", first=first, again=trainer.metrics.get("loss"))
    return False


def _copy_of(state: Mapping[str, Any]) -> Any:
    tensors: list[torch.Tensor] = []
    outline = take_apart(dict(state), tensors)
    return put_together(outline, [tensor.detach().to("cpu", copy=True) for tensor in tensors])


def _schedules(function: Any) -> dict[str, int]:
    """Where they are, by the name of their attribute."""
    return {
        f"self.{name}": value.last_epoch
        for name, value in vars(function).items()
        if isinstance(value, LRScheduler)
    }


def _plain_attributes(model: nn.Module) -> dict[str, bytes]:
    """What no state_dict holds, by module and name, as bytes; without that of which nothing can be said."""
    found: dict[str, bytes] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in _OF_TORCH:
                continue
            try:
                found[f"{path}.{name}".lstrip(".")] = pickle.dumps(_detached(value))
            except Exception as error:  # pickle raises whatever the object does
                log.debug("attribute_not_compared", name=name, reason=str(error))
    return found


def _detached(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
