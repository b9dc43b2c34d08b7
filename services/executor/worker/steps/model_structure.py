"""The parameters and buffers of a job's model: those that train() adds, replaces or removes would be missing elsewhere.

Workers that join, and checkpoints, have what init_model() has made. train() is called once for each part of a batch, so
it would also add a layer once for each.
"""

from functools import cache
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from elasticflow.services.executor.worker.steps.training_function import TrainingFailed


class ModelStructure:
    """Of one job in one process. A step costs a comparison of two numbers, unless it changes some module."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = _names_in(model)
        self._registrations = _registrations()
        self._num_seen = self._registrations.count

    def require_unchanged(self, iteration: int) -> None:
        """At the end of a step. Raises TrainingFailed."""
        if self._registrations.count == self._num_seen:
            return
        self._num_seen = self._registrations.count
        names = _names_in(self._model)
        added, removed = sorted(names - self._names), sorted(self._names - names)
        if added or removed:
            did, name = ("added", added[0]) if added else ("removed", removed[0])
            raise TrainingFailed(
                f"train() {did} {name} of the model in iteration {iteration}. Workers that join and checkpoints have "
                "the model of init_model(), and a worker calls train() once for each part of a batch: let init_model() "
                "make all of it, and use a part of it when self.iteration says so (requires_grad_(False) freezes it "
                "until then)"
            )


class _Registrations:
    """Of parameters, buffers and modules in any module of this process."""

    count = 0

    def note(self, *_: Any) -> None:
        self.count += 1


@cache
def _registrations() -> _Registrations:
    """One for all jobs of a process, which would otherwise keep the model of each."""
    registrations = _Registrations()
    for register in (
        torch_module.register_module_parameter_registration_hook,
        torch_module.register_module_buffer_registration_hook,
        torch_module.register_module_module_registration_hook,
    ):
        register(registrations.note)
    return registrations


def _names_in(model: nn.Module) -> frozenset[str]:
    parameters = {f"the parameter {name}" for name, _ in model.named_parameters(remove_duplicate=False)}
    return frozenset(parameters | {f"the buffer {name}" for name, _ in model.named_buffers(remove_duplicate=False)})
