"""Plain state in objects that a training loop holds: modules of the model, a library's trainer, its callbacks.

A counter in forward(), a rate in a trainer's attribute, a history in a callback: user code changes them once in a step,
and workers that join have them. What libraries keep in the same objects is theirs, and no state.
"""

import dis
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import lru_cache
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from elasticflow.services.executor.worker.engine.plain_state import Namespace
from elasticflow.services.executor.worker.engine.plain_values import Attributes
from elasticflow.services.executor.worker.process.users_code import is_users_module

_OF_MODULES = frozenset(vars(nn.Module()))  # hooks, parameters and the like


def namespace_of(prefix: str, of: object) -> Namespace | None:
    """The attributes that user code gives an object; None for one of a library's class."""
    if not _is_users_class(type(of)):
        return None
    return Namespace(prefix, Attributes(of), _names_of_libraries(type(of)), may_delete=True, of=id(of))


@lru_cache(maxsize=4096)
def _is_users_class(kind: type) -> bool:
    return any(is_users_module(each.__module__) for each in kind.__mro__)


@lru_cache(maxsize=4096)
def _names_of_libraries(kind: type) -> frozenset[str]:
    """The attributes that the library's classes, from which the user's one derives, give their objects."""
    functions = (
        each
        for base in kind.__mro__
        if not is_users_module(base.__module__)
        for member in vars(base).values()
        for each in (member, getattr(member, "fset", None))
        if isinstance(each, FunctionType)
    )
    names = frozenset(name for function in functions for name in _given_to_self(function))
    return names | _OF_MODULES if issubclass(kind, nn.Module) else names


def _given_to_self(function: FunctionType) -> Iterator[str]:
    """The names of attributes that a method assigns."""
    variables = function.__code__.co_varnames
    before: Any = None
    for instruction in dis.get_instructions(function):
        if instruction.opname == "STORE_ATTR" and variables:
            of = before[-1] if isinstance(before, tuple) else before
            if of == variables[0]:
                yield instruction.argval
        before = instruction.argval


class ModelState:
    """What a model has beside its parameters and buffers: attributes of modules of the user's classes, and which
    parameters train. keeps_modes: which modules train, too. The modules stay the same."""

    def __init__(self, model: nn.Module, *, keeps_modes: bool) -> None:
        modules = dict(model.named_modules())
        made = (namespace_of(f"model.{path}." if path else "model.", each) for path, each in modules.items())
        flags = Namespace("model's ", _Flags(model, list(modules.values()) if keeps_modes else []))
        self.namespaces = (flags, *(each for each in made if each is not None))


class _Flags(MutableMapping[str, str]):
    """Those of all parameters and modules, a character each."""

    def __init__(self, model: nn.Module, modules: list[nn.Module]) -> None:
        self._parameters: list[torch.Tensor] = list(model.parameters())
        self._modules = modules

    def __getitem__(self, name: str) -> str:
        if name == "requires_grad":
            return "".join("1" if each.requires_grad else "0" for each in self._parameters)
        return "".join("1" if each.training else "0" for each in self._modules)

    def __setitem__(self, name: str, value: str) -> None:
        if name == "requires_grad":
            for parameter, flag in zip(self._parameters, value, strict=True):
                parameter.requires_grad_(flag == "1")
        else:
            for module, flag in zip(self._modules, value, strict=True):
                module.training = flag == "1"

    def __delitem__(self, name: str) -> None:
        raise AssertionError("flags stay")

    def __iter__(self) -> Iterator[str]:
        return iter(("requires_grad", "training") if self._modules else ("requires_grad",))

    def __len__(self) -> int:
        return 2 if self._modules else 1


@runtime_checkable
class _HoldsObjects(Protocol):
    def object_namespaces(self) -> Iterable[Namespace]: ...


def held_objects(job: object, model: nn.Module) -> Callable[[], Iterable[Namespace]]:
    """The modules of the model, and the objects of the library that runs the job's loop, if one does."""
    if isinstance(job, _HoldsObjects):
        return job.object_namespaces
    of_model = ModelState(model, keeps_modes=False).namespaces
    return lambda: of_model
