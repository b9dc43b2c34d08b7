"""Checks that a step depends on declared state only: runs the first step twice from the same state.

State that a pass keeps elsewhere is in no checkpoint, does not reach a joining worker, and virtual nodes share it in an
order that depends on the number of workers. Such a job would silently end with other weights at each number of workers.
A cache that changes neither loss nor gradients passes. A schedule in an attribute of the job fails although it does not
change the loss so early. On a GPU an operation may also differ by itself: its loss is the same then, and its gradients
are not.
"""

import itertools
import pickle
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random  # noqa: TID251 - of user code
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from elasticflow.services.executor.worker.data.sample_readers import checksum_of
from elasticflow.services.executor.worker.engine.local_shards import local_of
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.group.nested_tensors import flatten, unflatten
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.compiled_models import has_compiled
from elasticflow.services.executor.worker.process.users_code import is_users_module, items_of
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript, is_looped_by_library
from elasticflow.shared.errors import names_in_short
from elasticflow.shared.runtime.process.logs import log

# --- hidden state --------------------------------------------------------------------------------------
# What user code may keep from step to step although it is no state of its job: found by walking through its objects.
#
# Attributes of the job, of its classes and of the model, variables of its modules and closures, random generators,
# iterators, and what containers hold. A walk names what a step has changed; it changes nothing.

_MOST_BYTES, _MOST_ITEMS = 1 << 26, 1000  # of one value: larger ones are data
_DEPTH = 5
_OF_WORKER = frozenset({"iteration", "is_over"})
_ATTRIBUTES_OF_MODULE = frozenset(vars(nn.Module()))
_DATA = (DataLoader, Dataset, torch.optim.Optimizer, LRScheduler)  # compared otherwise
_COUNTERS = (itertools.count, itertools.cycle, itertools.repeat)


def values_by_name(job: object, model: nn.Module) -> dict[str, Any]:
    """The values of all that user code may have changed, in a form to compare."""
    return {**_plain_attributes(model), **_Walk(model).of_job(job)}


def is_plain(compared: Any) -> bool:
    """Whether a value is a part of the plain state, or of what follows from it."""
    return isinstance(compared, tuple | int)


class _Walk:
    def __init__(self, model: nn.Module) -> None:
        self._seen = {id(model)}
        self._found: dict[str, Any] = {}

    def of_job(self, job: object) -> dict[str, Any]:
        for name, value in list(vars(job).items()):
            if name not in _OF_WORKER:
                self._visit(f"self.{name}", value, _DEPTH)
        for kind in type(job).__mro__:
            if is_users_module(kind.__module__):
                self._visit_all(f"{kind.__name__}.", vars(kind))
        for name in [name for name in list(sys.modules) if is_users_module(name)]:
            self._visit_all("", vars(sys.modules[name]))
        return self._found

    def _visit_all(self, prefix: str, values: Mapping[str, Any]) -> None:
        for name, value in list(values.items()):
            if not name.startswith("__") and not isinstance(value, ModuleType | type):
                self._visit(prefix + name, value, _DEPTH)

    def _visit(self, name: str, value: Any, depth: int) -> None:
        compared = _compared(value)
        if compared is not None:
            self._found[name] = compared
        elif depth > 0 and id(value) not in self._seen and not isinstance(value, _DATA):
            self._seen.add(id(value))
            for of_item, item in _items_of(value):
                self._visit(name + of_item, item, depth - 1)


def _compared(value: Any) -> Any:
    """The value in a form to compare, or None if it is nothing by itself."""
    match value:
        case bool() | int() | float() | complex() | str() | bytes():
            return type(value), value if len(repr(value)) < _MOST_ITEMS else zlib.crc32(repr(value).encode())
        case torch.Tensor():
            return checksum_of(value, 0) if value.nbytes <= _MOST_BYTES and not value.is_sparse else None
        case np.ndarray() if value.dtype != object:
            return checksum_of(value, 0) if value.nbytes <= _MOST_BYTES else None
        case torch.Generator():
            return checksum_of(value.get_state(), 0)
        case np.random.Generator():
            return repr(value.bit_generator.state)
        case np.random.RandomState():
            return zlib.crc32(repr(value.get_state()).encode())
        case Random():
            return zlib.crc32(repr(value.getstate()).encode())
        case _ if isinstance(value, _COUNTERS):
            return repr(value)
        case _:
            return None


def _items_of(value: Any) -> Iterable[tuple[str, Any]]:
    match value:
        case list() | tuple() | deque():
            first = list(itertools.islice(value, _MOST_ITEMS))
            return [("'s length", len(value)), *items_of(first, _MOST_ITEMS)]
        case set() | frozenset():
            return [("'s length", len(value))]
        case FunctionType():
            return _of_function(value)
        case MethodType():
            return [("", value.__func__), ("'s object", value.__self__)]
        case nn.Module():
            return []
        case _:
            return items_of(value, _MOST_ITEMS)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    if not is_users_module(function.__module__ or ""):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    for number, default in enumerate(function.__defaults__ or ()):
        yield f"'s default {number}", default
    for name, value in vars(function).items():
        yield f".{name}", value


def _plain_attributes(model: nn.Module) -> dict[str, bytes]:
    """Attributes that no state_dict holds, by module and name, pickled; those that cannot be pickled are skipped."""
    found: dict[str, bytes] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in _ATTRIBUTES_OF_MODULE:
                continue
            try:
                found[f"model.{path}.{name}".replace("..", ".")] = pickle.dumps(_detached(value))
            except Exception as error:  # pickle raises whatever the object does
                log.debug("attribute_not_compared", name=name, reason=str(error))
    return found


def _detached(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


# --- repeatability check -------------------------------------------------------------------------------

_NAMED = 3  # of what has changed, in an error
_LONG_ITERATIONS = 100  # one more is far less than the margin of a promise


def needs_repeatability_check(trainer: Trainer) -> bool:
    """Whether no profiling run may have checked this code: a job with a model name may have a known speed.

    A script keeps state of a step that cannot be rolled back, and a short job's promise has no time for another step.
    """
    if isinstance(trainer.function, ElasticScript) or trainer.spec.max_iterations < _LONG_ITERATIONS:
        return False
    return trainer.iteration == 0 and bool(trainer.spec.model_name)


def run_first_step_twice(trainer: Trainer, *, stop: bool) -> bool:
    """Run the step, reload its initial state, and run it again. Returns whether all workers stop after it.

    Raises TrainingFailed if the second loss, gradient or parameter differs, and names what has changed. Only where
    operations may differ by themselves, a difference without such a cause is a warning in the job's history.
    """
    beginning, before = _copy_of(trainer.state()), _hidden(trainer)
    if trainer.step(stop=stop).stop:
        return True
    trainer.settle()
    if trainer.is_over:  # a script has left its loop
        return False
    first, after = _results(trainer), _hidden(trainer)
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
    again, finally_ = _results(trainer), _hidden(trainer)
    changed = _changed(after, finally_)
    if differing := next((name for name, result in first.items() if again.get(name) != result), ""):
        once = [name for name in _changed(before, finally_) if not is_plain(finally_[name])]
        require_repeated(trainer, differing, changed or once)
    elif trainer.function.reproducible == "bitwise" and changed:
        trainer.telemetry.warn(
            f"train() changes {names_in_short(changed, _NAMED)}, which {_IS_NO_STATE}. The first step does not depend "
            f"on it; if a later one does, the job ends with other weights at each number of workers. {_ADVICE}"
        )
    return False


_IS_NO_STATE = (
    "is no state of the job: workers that join and checkpoints do not have it, and it changes once for each part of a "
    "batch"
)
_ADVICE = (
    "Declare a tensor with register_buffer(), keep numbers in attributes of the job, let stateful() return an object "
    "that is the same for each part of a batch, draw random numbers from torch, numpy or random without seeding them, "
    "or derive it from self.iteration"
)


def require_repeated(trainer: Trainer, differing: str, changed: Sequence[str]) -> None:
    """Raises TrainingFailed, unless an operation may be the cause. changed: names of what differs after both steps."""
    again = f"the same step gave another {differing} when it was repeated"
    if changed:
        raise TrainingFailed(
            f"{again}: the job keeps {names_in_short(changed, _NAMED)} from step to step, which {_IS_NO_STATE}. "
            f"{_ADVICE}"
        )
    if trainer.function.reproducible != "bitwise":
        return
    # compiled for one size and for several, a model may round differently
    if trainer.device.type == "cpu" and not has_compiled() and not is_looped_by_library(trainer.function):
        trainer.read_ahead.require_same_samples(trainer.engine.computed)
        raise TrainingFailed(
            f"{again}: it depends on the time, or on something that train() changes, such as a file, an iterator or an "
            f"environment variable. That {_IS_NO_STATE}. {_ADVICE}"
        )
    log.warning("step_not_repeatable", result=differing)
    trainer.telemetry.warn(
        f"{again}: some operation or random number of this job does not repeat, so two runs may end with other bits"
    )


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in after if after[name] != before.get(name))


def _hidden(trainer: Trainer) -> dict[str, Any]:
    """What may be state, by name, although it reaches no other worker."""
    if isinstance(trainer.function, ElasticScript):
        return {}
    return values_by_name(trainer.function, trainer.model)


def _results(trainer: Trainer) -> dict[str, float | int | None]:
    """The loss, and checksums of gradients, if train() keeps them, and of parameters."""
    parameters = dict(trainer.model.named_parameters())
    gradients = {f"gradient of {name}": each.grad for name, each in parameters.items()}
    found = {name: each for name, each in (gradients | parameters).items() if each is not None and not each.is_sparse}
    return {"loss": trainer.metrics.get("loss")} | {
        name: checksum_of(local_of(each), 0) for name, each in found.items()
    }


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
