"""State that a job keeps beside its model, its optimizer and stateful(): modules that train() changes, and numbers.

A module that is no part of the job's state, such as a teacher in an attribute, reaches neither workers that join nor
checkpoints, and changes once for each part of a batch. The job fails with a sentence. Numbers in attributes of the job
are state: they change once in a step, as on one device, and travel with the rest.
"""

import gc
import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from elasticflow.services.executor.worker.steps.additional_state import AdditionalState
from elasticflow.services.executor.worker.steps.carried_gradients import parameters_of
from elasticflow.services.executor.worker.steps.parameter_changes import Mark
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed

_SEARCHES = 2  # in the first steps: train() may make a module in its first call
_COMPARE_VALUES_EVERY = 100  # steps


class UndeclaredModules:
    """Those in this process that are no state of its job."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, additional: AdditionalState) -> None:
        self._model, self._optimizer, self._additional = model, optimizer, additional
        self._searches_left = _SEARCHES
        self._found: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        self._there: list[tuple[str, torch.Tensor]] = []
        self._mark: Mark | None = None

    def begin_step(self, iteration: int) -> None:
        """Marks their tensors as they are."""
        compares_values = self._searches_left > 0 or iteration % _COMPARE_VALUES_EVERY == 0
        if self._searches_left:
            self._searches_left -= 1
            self._found = [(name, weakref.ref(tensor)) for name, tensor in self._search()]
        self._there = [(name, tensor) for name, reference in self._found if (tensor := reference()) is not None]
        self._mark = Mark.of([tensor for _, tensor in self._there], iteration if compares_values else None)

    def require_unchanged(self, iteration: int) -> None:
        """At the end of the step. Raises TrainingFailed."""
        there, mark, self._there, self._mark = self._there, self._mark, [], None
        changed = mark.changed([tensor for _, tensor in there]) if mark is not None else None
        for name, tensor in there:
            if tensor is changed:
                raise TrainingFailed(
                    f"train() changed {name} in iteration {iteration}, which is no state of the job: workers that join "
                    "and checkpoints would not have it, and it changes once for each part of a batch. Make it a part "
                    "of the model that init_model() returns, or return it from stateful() (a script: pass it to "
                    "elasticflow.elastic() behind the optimizer)"
                )

    def _search(self) -> Iterator[tuple[str, torch.Tensor]]:
        """By what users know: the class of the outermost module, and the name in it."""
        modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
        inner = {id(child) for module in modules for child in module._modules.values()}
        declared = {tensor.untyped_storage()._cdata for tensor in self._declared()}
        for module in modules:
            if id(module) not in inner:
                for name, tensor in _tensors_of(module):
                    if not nn.parameter.is_lazy(tensor) and tensor.untyped_storage()._cdata not in declared:
                        yield f"{name} of a {type(module).__name__}", tensor

    def _declared(self) -> Iterator[torch.Tensor]:
        yield from parameters_of(self._model, self._optimizer)
        yield from self._model.buffers()
        for each in self._additional.objects.values():
            if isinstance(each, nn.Module):
                yield from (tensor for _, tensor in _tensors_of(each))
        yield from self._additional.state()[1]


def _tensors_of(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
