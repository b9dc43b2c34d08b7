"""The structure of a job's model: its modules, parameters, buffers and hooks, which are the same in every process.

Workers that join, and checkpoints, have what init_model() or the script has made before its loop. train() is called
once for each part of a batch, so it would also add a layer once for each.
"""

# pyright: reportPrivateUsage=false
# (torch has no other way to ask a module or a parameter for its hooks)

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.users_code import is_users_module

_HOOKS: Mapping[str, str] = {
    "_forward_hooks": "register_forward_hook()",
    "_forward_pre_hooks": "register_forward_pre_hook()",
    "_backward_hooks": "register_full_backward_hook()",
    "_backward_pre_hooks": "register_full_backward_pre_hook()",
}
_PARAMETER_HOOKS: Mapping[str, str] = {
    "_backward_hooks": "register_hook()",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook()",
}

Hook: TypeAlias = tuple[str, str, int]
"""Of what, the method that registers it, and its id."""


_CHECKED_ANYWAY = 64  # steps


class ModelStructure:
    """The structure of one job's model in one process. A step costs a comparison of numbers, unless it changes some
    module, or registers more or fewer hooks than the last one: the engine registers some in each step of several
    workers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = _names_in(model)
        self._made = dict(_parts_of(model))
        self._hooks = frozenset(_hooks_of(model))
        self._registrations = _registrations()
        self._num_seen = self._registrations.count
        self._next_hook, self._usual_num_hooks = RemovableHandle.next_id, 0
        self._is_first = True

    def require_unchanged(self, iteration: int) -> None:
        """Check the model's structure at the end of a step. Raises TrainingFailed."""
        if self._registrations.count != self._num_seen:
            self._num_seen = self._registrations.count
            self._require_same_parts(iteration)
        num_hooks = RemovableHandle.next_id - self._next_hook
        if num_hooks != self._usual_num_hooks or (num_hooks and iteration % _CHECKED_ANYWAY == 0):
            self._require_same_hooks(iteration)
        self._next_hook, self._usual_num_hooks = RemovableHandle.next_id, num_hooks
        self._is_first = False

    def _require_same_parts(self, iteration: int) -> None:
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
        made, self._made = self._made, dict(_parts_of(self._model))
        changed = next((name for name in made if not _is_alike(made[name], self._made.get(name))), "")
        did = "replaced" if changed in self._made else "removed"
        if not changed and not self._is_first:  # a first call may make what it needs, in each process
            changed, did = next((name for name in self._made if name not in made), ""), "added"
        if changed:
            raise TrainingFailed(
                f"train() {did} {changed} of the model in iteration {iteration}. Workers that join and checkpoints "
                "have what was there before the first step: make all of it before, and choose in forward() by a number "
                "or a text in an attribute, which is carried; or set an attribute of the module that is there"
            )

    def _require_same_hooks(self, iteration: int) -> None:
        """Hooks of libraries are theirs: a profiler's, for example."""
        added = next((each for each in _hooks_of(self._model) if each not in self._hooks), None)
        if added is not None:
            of, method, _ = added
            raise TrainingFailed(
                f"train() called {method} of {of} in iteration {iteration}. Workers that join and checkpoints would "
                "lack that hook: register it before the first step, and let it do nothing until a number in an "
                "attribute or a variable says so"
            )


class _Registrations:
    """The registrations of parameters, buffers and modules in any module of this process."""

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


def _parts_of(model: nn.Module) -> Iterator[tuple[str, nn.Module | torch.Tensor]]:
    for name, module in model.named_modules(remove_duplicate=False):
        yield f"the module {name}", module
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield f"the parameter {name}", parameter


def _is_alike(made: Any, now: Any) -> bool:
    """A module without tensors may be made anew, if it is the same otherwise."""
    return made is now or (isinstance(made, nn.Module) and isinstance(now, nn.Module) and are_alike(made, now))


def are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether they have no tensors, and compute the same."""
    if type(one) is not type(other) or any(has_tensors(each) for each in (one, other)):
        return False
    if one._modules.keys() != other._modules.keys() or not _same_attributes(one, other):
        return False
    pairs = zip(one._modules.values(), other._modules.values(), strict=True)
    return all(_is_alike(each, of_other) for each, of_other in pairs)


def has_tensors(module: nn.Module) -> bool:
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


_OF_MODULES = frozenset(vars(nn.Module())) - {"training"}


def _same_attributes(one: nn.Module, other: nn.Module) -> bool:
    mine, others = (
        {name: value for name, value in vars(each).items() if name not in _OF_MODULES} for each in (one, other)
    )
    try:
        return bool(mine == others)
    except Exception:  # an object compares as it likes
        return False


def _hooks_of(model: nn.Module) -> Iterator[Hook]:
    """Those of the user's code."""
    for name, module in model.named_modules():
        for attribute, method in _HOOKS.items():
            if hooks := getattr(module, attribute):
                for number in _of_user(hooks):
                    yield name or "the model", method, number
    for name, parameter in model.named_parameters():
        for attribute, method in _PARAMETER_HOOKS.items():
            if hooks := getattr(parameter, attribute, None):
                for number in _of_user(hooks):
                    yield f"the parameter {name}", method, number


def _of_user(hooks: Mapping[int, Callable[..., Any]]) -> list[int]:
    return [number for number, hook in hooks.items() if is_users_module(_module_of(hook))]


def _module_of(hook: Any) -> str:
    """Where its code is: of a partial function, of its function; of an object, of its class."""
    while hasattr(hook, "func"):
        hook = hook.func
    return getattr(hook, "__module__", None) or type(hook).__module__
