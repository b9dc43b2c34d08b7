"""State that a job keeps beside its model, its optimizer and stateful(): modules and tensors that train() changes.

A module that is no part of the job's state, such as a teacher in an attribute, reaches neither workers that join nor
checkpoints, and changes once for each part of a batch. So do tensors that user code has made before the first step and
keeps in objects or, in a script, in variables: for example a dict with averages of the weights. Such a job fails with a
sentence. A tensor that train() makes is no state, and plain state is part of it (`PlainState`).
"""

import gc
import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FrameType, ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from elasticflow.services.executor.worker.process.users_code import is_users_frame, items_of
from elasticflow.services.executor.worker.steps.additional_state import AdditionalState
from elasticflow.services.executor.worker.steps.carried_gradients import parameters_of
from elasticflow.services.executor.worker.steps.gradient_digest import COMPARE_TENSORS_EVERY
from elasticflow.services.executor.worker.steps.parameter_changes import Mark
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed

_SEARCHES = 2  # in the first steps: train() may make a module in its first call
_MOST_ITEMS = 100_000  # of containers and objects in attributes: the others are data
_DEPTH = 4  # of containers and objects in them
_NO_STATE = (nn.Module, torch.optim.Optimizer, LRScheduler, DataLoader, Dataset, type, ModuleType)  # or found otherwise

Named = tuple[str, torch.Tensor]


@runtime_checkable
class RunsScript(Protocol):
    """A script's tensors count if they have the shape of a parameter, as averages have."""

    def script_frames(self) -> Iterable[FrameType]:
        """The functions in which it is now."""
        ...


class UndeclaredState:
    """Tensors in this process that are no state of its job. job: the object of the user's class, or a script."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        additional: AdditionalState,
        job: object,
    ) -> None:
        self._model, self._optimizer, self._additional, self._job = model, optimizer, additional, job
        self._searches_left = _SEARCHES
        self._found: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        self._there: list[tuple[str, torch.Tensor]] = []
        self._mark: Mark | None = None
        self._in_attributes: dict[str, torch.Tensor] = {}  # when the step began, in steps that compare values
        self._first_names: frozenset[str] | None = None  # of these, before the first step

    def begin_step(self, iteration: int) -> None:
        """Marks their tensors as they are."""
        compares_values = self._searches_left > 0 or iteration % COMPARE_TENSORS_EVERY == 0
        self._in_attributes = dict(self._attributes()) if compares_values else {}
        if self._searches_left:
            self._searches_left -= 1
            found = (*self._search(), *self._in_attributes.items())
            self._found = [(name, weakref.ref(tensor)) for name, tensor in found]
        if self._first_names is None:
            self._first_names = frozenset(self._in_attributes)
        self._there = [(name, tensor) for name, reference in self._found if (tensor := reference()) is not None]
        self._mark = Mark.of([tensor for _, tensor in self._there], iteration if compares_values else None)

    def require_unchanged(self, iteration: int) -> None:
        """At the end of the step. Raises TrainingFailed."""
        there, mark, self._there, self._mark = self._there, self._mark, [], None
        changed = mark.changed([tensor for _, tensor in there]) if mark is not None else None
        names = [name for name, tensor in there if tensor is changed] or self._replaced()
        self._in_attributes = {}
        if names:
            raise TrainingFailed(
                f"train() changed {names[0]} in iteration {iteration}, which is no state of the job: workers that join "
                "and checkpoints would not have it, and it changes once for each part of a batch. Make it a part of "
                "the model that init_model() returns, or return it from stateful() (a script: pass it to "
                "elasticflow.elastic() behind the optimizer)"
            )

    def _replaced(self) -> list[str]:
        """Names of attributes that have another tensor than before the step, with other values."""
        if not self._in_attributes:
            return []
        now = dict(self._attributes())
        return [
            name
            for name, tensor in self._in_attributes.items()
            if (other := now.get(name)) is not None and other is not tensor and not _same(tensor, other)
        ]

    def _search(self) -> Iterator[Named]:
        """By what users know: the class of the outermost module, and the name in it."""
        modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
        inner = {id(child) for module in modules for child in module._modules.values()}
        declared = self._declared_storages()
        for module in modules:
            if id(module) not in inner:
                for name, tensor in _tensors_of(module):
                    if not nn.parameter.is_lazy(tensor) and tensor.untyped_storage()._cdata not in declared:
                        yield f"{name} of a {type(module).__name__}", tensor

    def _attributes(self) -> list[Named]:
        """Tensors that were there before the first step, or are now if it is the first one."""
        if isinstance(self._job, RunsScript):
            roots = _variables_of(self._job.script_frames())
            shapes = {parameter.shape for parameter in parameters_of(self._model, self._optimizer)}
        else:
            roots, shapes = {f"self.{name}": value for name, value in vars(self._job).items()}, None
        declared, known = self._declared_storages(), {id(each) for each in self._additional.objects.values()}
        items = (each for name, value in roots.items() for each in _walk(name, value, _DEPTH, known))
        return [
            (name, item)
            for name, item in islice(items, _MOST_ITEMS)
            if _is_tensor(item)
            and (item.numel() > 1 and item.layout is torch.strided)
            and (self._first_names is None or name in self._first_names)
            and (shapes is None or item.shape in shapes)
            and item.untyped_storage()._cdata not in declared
        ]

    def _declared_storages(self) -> set[int]:
        return {tensor.untyped_storage()._cdata for tensor in self._declared()}

    def _declared(self) -> Iterator[torch.Tensor]:
        parameters = parameters_of(self._model, self._optimizer)
        yield from parameters
        yield from (parameter.grad for parameter in parameters if parameter.grad is not None)
        yield from self._model.buffers()
        for each in self._additional.objects.values():
            if isinstance(each, nn.Module):
                yield from (tensor for _, tensor in _tensors_of(each))
        yield from self._additional.state()[1]


def _variables_of(frames: Iterable[FrameType]) -> dict[str, Any]:
    """Of the user's code among them, by name: those of inner functions hide others."""
    found: dict[str, Any] = {}
    for frame in reversed(list(filter(is_users_frame, frames))):
        found |= frame.f_globals | frame.f_locals
    return found


def _tensors_of(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _walk(name: str, value: Any, depth: int, known: set[int]) -> Iterator[tuple[str, Any]]:
    """It, and what is in containers and in objects of the user's classes. known: ids of declared objects."""
    yield name, value
    if depth > 0 and not _is_tensor(value) and id(value) not in known and not isinstance(value, _NO_STATE):
        for of_item, item in items_of(value, _MOST_ITEMS):
            yield from _walk(name + of_item, item, depth - 1, known)


def _is_tensor(value: Any) -> bool:
    return issubclass(type(value), torch.Tensor)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return alike and not one.detach().ne(other.detach()).any()
