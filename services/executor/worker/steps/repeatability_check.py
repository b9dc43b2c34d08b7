"""Checks that a step depends on declared state only: runs the first step twice from the same state.

State that a pass keeps in plain attributes of the model, or in tensors of the job, is in no checkpoint, does not reach
a joining worker, and virtual nodes share it in an order that depends on the number of workers. Such a job would
silently end with other weights at each number of workers. A cache that changes neither loss nor gradients passes. A
schedule in an attribute of the job fails although it does not change the loss so early. A backward pass may also differ
by itself: its loss is the same then, and its gradients are not.
"""

import pickle
import zlib
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

_MOST_BYTES, _MOST_ITEMS = 1 << 26, 1000  # of an attribute: larger ones are data
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

    Raises TrainingFailed, naming attributes, if the second loss or gradient differs and they have changed. A difference
    without such a cause is in the job's history.
    """
    beginning, before = _copy_of(trainer.state()), _undeclared(trainer)
    if trainer.step(stop=stop).stop:
        return True
    trainer.settle()
    first, after = _results(trainer), _undeclared(trainer)
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
    again = _results(trainer)
    if differing := next((name for name, result in first.items() if again.get(name) != result), ""):
        changed = sorted(name for name in after if after[name] != before.get(name))
        if changed:
            raise TrainingFailed(
                f"the same step gave another {differing} when it was repeated: the model keeps {', '.join(changed)}, "
                "which is neither parameter nor buffer, from step to step; declare it with register_buffer(), or, if "
                "it is the same for each part of a batch, let stateful() return it"
            )
        log.warning("step_not_repeatable", first=first[differing], again=again.get(differing), result=differing)
        if trainer.function.reproducible == "bitwise":
            trainer.telemetry.warn(
                f"the same step gave another {differing} when it was repeated: some operation or random number of this "
                "job does not repeat, so two runs may end with other bits"
            )
    return False


def _results(trainer: Trainer) -> dict[str, float | int | None]:
    """The loss, and checksums of gradients, if train() keeps them, and of parameters."""
    parameters = dict(trainer.model.named_parameters())
    gradients = {f"gradient of {name}": each.grad for name, each in parameters.items()}
    found = {name: each for name, each in (gradients | parameters).items() if each is not None and not each.is_sparse}
    return {"loss": trainer.metrics.get("loss")} | {name: _checksum(each) for name, each in found.items()}


def _checksum(tensor: torch.Tensor) -> int:
    data = tensor.detach().cpu().resolve_conj().contiguous()
    return zlib.crc32(data.reshape(-1).view(torch.uint8).numpy().data)


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


def _undeclared(trainer: Trainer) -> dict[str, Any]:
    """What may be state, by name, although it reaches no other worker."""
    of_job = {f"self.{name}": _checksums(value) for name, value in vars(trainer.function).items()}
    return {**_plain_attributes(trainer.model), **{name: value for name, value in of_job.items() if value is not None}}


def _checksums(value: Any) -> Any:
    """Of a tensor, or of a few in a container. None: no tensor."""
    match value:
        case torch.Tensor() if value.nbytes <= _MOST_BYTES and not value.is_sparse:
            return _checksum(value)
        case dict() | list() | tuple() if len(value) <= _MOST_ITEMS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            return {key: found for key, item in items if (found := _checksums(item)) is not None} or None
        case _:
            return None


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
