"""Plain state of user code: plain values in attributes of a job or in variables of a script.

A counter, a list of losses, a rate in a dict: train() changes them once in a step, as on one device, and workers that
join have them. What is not plain, such as a large tensor, a generator or an iterator, is no state here.
"""

import ctypes
import dis
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from types import FrameType, FunctionType
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn

from elasticflow.services.executor.worker.engine.plain_values import (
    CODE,
    NOT_PLAIN,
    Attributes,
    Objects,
    OfObject,
    Plain,
    arrays_in,
    assign,
    is_too_large,
    plain_of,
)
from elasticflow.services.executor.worker.process.users_code import is_users_module


@dataclass(frozen=True, slots=True)
class Namespace:
    """Values by name. prefix: of the names in a state, the same in every process. without: names that are no state.
    only: the others, if some. may_delete: what a call adds is not there in the next call. write_back: after changes.
    of: the id of the object that has them, if one has. are_paths: names need not be identifiers.
    """

    prefix: str
    values: MutableMapping[str, Any]
    without: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    may_delete: bool = False
    write_back: Callable[[], None] = lambda: None
    of: int = 0
    are_paths: bool = False


class PlainState:
    """namespaces: those of now. known: objects whose state is kept otherwise."""

    restores_itself = False  # before each call of a step

    def __init__(self, namespaces: Callable[[], Iterable[Namespace]] = tuple, known: Iterable[Any] = ()) -> None:
        self._namespaces = namespaces
        self._known = frozenset(map(id, known))
        self._marked: Mapping[str, Plain] = {}  # before a step
        self._kept: dict[str, Plain] | None = None  # of the last step
        self._there = frozenset[str]()  # names before it, also of what is not plain
        self.too_large = set[str]()  # names of containers that are data, because they are so large
        # by namespace: all names, these
        self._known_variables: dict[tuple[str, frozenset[str] | None], tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def mark(self) -> dict[str, Plain]:
        """A copy, by name, before a step: arrays that are there now last, and are written in place from now on."""
        spaces = tuple(self._namespaces())
        self._marked = self._read(spaces)
        self._there = frozenset(
            space.prefix + name for space in spaces if space.may_delete for name in self._variables(space)
        )
        return dict(self._marked)

    def keep(self) -> None:
        """Stay as it is now, whatever becomes of the names: what follows belongs to no step."""
        self._kept = self.read()

    def read(self) -> dict[str, Plain]:
        """A copy, by name."""
        return self._read(self._namespaces()) if self._kept is None else dict(self._kept)

    def _read(self, spaces: Iterable[Namespace]) -> dict[str, Plain]:
        return {space.prefix + name: plain for space in spaces for name, plain in self._plain_in(space)}

    def write(self, state: Mapping[str, Plain], *, deletes: bool = False) -> None:
        """Give the names these values, in the containers that are there. deletes: other plain values, with names that
        were not there before the step."""
        is_of_here = any(isinstance(plain, OfObject) for plain in state.values())
        lasting = () if is_of_here else arrays_in(tuple(self._marked.values()))
        of, full_names = Objects(self._known, frozenset(lasting)), sorted(state)
        place = {name: number for number, name in enumerate(state)}
        for space in self._namespaces():
            now = dict(self._plain_in(space))
            names = sorted(_names_of(space, full_names), key=lambda name: place[space.prefix + name])
            mine = {name: state[space.prefix + name] for name in names}
            changed = [name for name, plain in mine.items() if name not in now or now[name] != plain]
            others = [name for name in now if name not in mine] if deletes and space.may_delete else []
            added = [name for name in others if space.prefix + name not in self._there]
            for name in changed:
                assign(space.values, name, mine[name], of)
            for name in added:
                del space.values[name]
            if changed or added:
                space.write_back()

    def _plain_in(self, space: Namespace) -> Iterator[tuple[str, Plain]]:
        for name in self._variables(space):
            plain = plain_of(value := space.values[name], Objects(self._known))
            if plain is not NOT_PLAIN:
                yield name, plain
            elif is_too_large(value):
                self.too_large.add(space.prefix + name)

    def _variables(self, space: Namespace) -> Sequence[str]:
        """All names but those of functions, classes and modules: most names are."""
        names = tuple(space.values)
        known, variables = self._known_variables.get((space.prefix, space.only), ((), ()))
        if known != names:
            variables = tuple(
                name for name in names if not isinstance(space.values[name], CODE) and _is_name(name, space)
            )
            self._known_variables[space.prefix, space.only] = names, variables
        return variables


def _names_of(space: Namespace, full_names: Sequence[str]) -> Iterator[str]:
    """full_names: of a state, sorted; a model has as many namespaces as modules."""
    for full_name in islice(full_names, bisect_left(full_names, space.prefix), None):
        if not full_name.startswith(space.prefix):
            return
        if _is_name(name := full_name.removeprefix(space.prefix), space):
            yield name


def _is_name(name: str, space: Namespace) -> bool:
    is_state = name not in space.without if space.only is None else name in space.only
    return is_state and (space.are_paths or name.isidentifier()) and not name.startswith("__")


Pass: TypeAlias = Literal["new", "joined", "repeated"]
"""A pass through the loop of a script: the first one of its step, in the loop or by a process that begins within an
epoch, or another one."""


class LoopState(PlainState):
    """The plain state of a script, whose loop goes from pass to pass by itself. What lies between two steps, such as
    the beginning of an epoch, runs once in each process, so a step begins in the loop."""

    restores_itself = True

    def __init__(self, namespaces: Callable[[], Iterable[Namespace]]) -> None:
        super().__init__(namespaces)
        self._iteration = -1  # of the last pass
        self._before: dict[str, Plain] = {}  # its first pass
        self._joined: Mapping[str, Plain] | None = None  # of the workers that this one joins, within an epoch

    def join(self, state: Mapping[str, Plain]) -> None:
        """Write this state in the next pass, when this process has begun the epoch, too."""
        self._joined = state

    def begin_pass(self, iteration: int) -> Pass:
        """All passes of a step begin alike, also when it is repeated."""
        has_joined = self._joined is not None
        if self._joined is not None:
            self.write(self._joined)
            self._joined = None
        if iteration == self._iteration:
            self.write(self._before, deletes=True)
            return "repeated"
        self._iteration, self._before = iteration, self.mark()
        return "joined" if has_joined else "new"


@runtime_checkable
class HasLoopState(Protocol):
    """records: what its library notes."""

    @property
    def loop_state(self) -> LoopState: ...

    @property
    def records(self) -> PlainState: ...


def plain_state_of(job: object, known: Iterable[Any], of_model: Sequence[Namespace] = ()) -> PlainState:
    """Attributes of a job, of its classes and of its model, and variables of their modules; or those of a script's
    loop, which knows its model."""
    if isinstance(job, HasLoopState):
        return job.loop_state
    classes = [each for each in type(job).__mro__ if is_users_module(each.__module__)]
    modules = dict.fromkeys(each.__module__ for each in classes)
    namespaces = (
        Namespace("", vars(job), frozenset({"iteration", "is_over"}), may_delete=True),
        *(Namespace(f"{each.__name__}.", _ClassAttributes(each)) for each in classes),
        *(Namespace(f"{name}:", vars(sys.modules[name]), may_delete=True) for name in modules),
        *of_model,
    )
    return PlainState(lambda: namespaces, (*known, job))


def records_of(job: object) -> PlainState:
    return job.records if isinstance(job, HasLoopState) else PlainState()


class _ClassAttributes(MutableMapping[str, Any]):
    def __init__(self, of: type) -> None:
        self._of = of

    def __getitem__(self, name: str) -> Any:
        return vars(self._of)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._of, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._of, name)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self._of))

    def __len__(self) -> int:
        return len(vars(self._of))


def namespaces_of_frames(frames: Iterable[FrameType]) -> Iterator[Namespace]:
    """Variables of functions that run, and of their modules. frames: from the innermost one, of user code alone."""
    seen = set[str]()
    for frame in frames:
        module, function = frame.f_globals["__name__"], frame.f_code.co_qualname
        if module not in seen:
            yield Namespace(f"{module}:", frame.f_globals, may_delete=True)
        if function != "<module>" and (prefix := f"{module}:{function}.") not in seen:
            yield Namespace(prefix, frame.f_locals, write_back=partial(_write_locals, frame))
            seen.add(prefix)
        seen.add(module)


def _write_locals(frame: FrameType) -> None:
    """Write changed f_locals back to the frame. Python 3.13 and later versions do so by themselves."""
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


# --- object state -------------------------------------------------------------------------------------
# Plain state in objects that a training loop holds: modules of the model, a library's trainer, its callbacks.
#
# A counter in forward(), a rate in a trainer's attribute, a history in a callback: user code changes them once in a
# step, and workers that join have them. What libraries keep in the same objects is theirs, and no state.

_OF_MODULES = frozenset(vars(nn.Module()))  # hooks, parameters and the like


def namespace_of(prefix: str, of: object) -> Namespace | None:
    """The attributes that user code gives an object; None for one of a library's class."""
    if not is_users_class(type(of)):
        return None
    return Namespace(prefix, Attributes(of), _names_of_libraries(type(of)), may_delete=True, of=id(of))


@lru_cache(maxsize=4096)
def is_users_class(kind: type) -> bool:
    return any(is_users_module(each.__module__) for each in kind.__mro__)


def is_users_attribute(kind: type, name: str) -> bool:
    """Whether `namespace_of` has it, of an object of this class."""
    return is_users_class(kind) and name not in _names_of_libraries(kind)


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
