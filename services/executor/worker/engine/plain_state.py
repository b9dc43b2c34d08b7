"""Plain state of user code: numbers, texts and containers of them, in attributes of a job or in variables of a script.

A counter, a list of losses, a rate in a dict: train() changes them once in a step, as on one device, and workers that
join have them. What is not plain, such as a tensor, a generator or an iterator, is no state here.
"""

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType, FunctionType, ModuleType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from elasticflow.services.executor.worker.process.users_code import is_users_module

MOST_ITEMS = 10_000  # of a container: larger ones are data
_DEPTH = 4  # of containers in containers
_LEAVES = frozenset({int, float, bool, str, type(None)})
_KINDS = {list: "list", tuple: "tuple", deque: "deque", set: "set", dict: "dict"}
_TYPES: Mapping[str, Any] = {name: kind for kind, name in _KINDS.items()}
_CODE = (FunctionType, ModuleType, type)
_OF_TORCH = (torch.Tensor, nn.Module, torch.optim.Optimizer, LRScheduler, DataLoader, Dataset)
_NOT_PLAIN = object()

Plain = Any  # a leaf, or the kind of a container and what it holds: ("list", (1, 2)), ("deque", (1, 2), 5)


@dataclass(frozen=True, slots=True)
class Namespace:
    """Values by name. prefix: of the names in a state, the same in every process. without: names that are no state.
    may_delete: what a call adds is not there in the next call. write_back: after changes."""

    prefix: str
    values: MutableMapping[str, Any]
    without: frozenset[str] = frozenset()
    may_delete: bool = False
    write_back: Callable[[], None] = lambda: None


class PlainState:
    """namespaces: those of now. known: objects whose state is kept otherwise."""

    restores_itself = False  # before each call of a step

    def __init__(self, namespaces: Callable[[], Iterable[Namespace]] = tuple, known: Iterable[Any] = ()) -> None:
        self._namespaces = namespaces
        self._known = frozenset(map(id, known))
        self.too_large = set[str]()  # names of containers that are data, because they are so large
        self._known_variables: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}  # by namespace: all names, these

    def read(self) -> dict[str, Plain]:
        """A copy, by name."""
        return {space.prefix + name: plain for space in self._namespaces() for name, plain in self._plain_in(space)}

    def write(self, state: Mapping[str, Plain], *, deletes: bool = False) -> None:
        """Give the names these values, in the containers that are there. deletes: other plain values."""
        for space in self._namespaces():
            now = dict(self._plain_in(space))
            mine = {
                name: plain
                for full, plain in state.items()
                if full.startswith(space.prefix) and _is_name(name := full.removeprefix(space.prefix), space)
            }
            changed = [name for name, plain in mine.items() if name not in now or now[name] != plain]
            added = [name for name in now if name not in mine] if deletes and space.may_delete else []
            for name in changed:
                _assign(space.values, name, mine[name], self._plain)
            for name in added:
                del space.values[name]
            if changed or added:
                space.write_back()

    def _plain_in(self, space: Namespace) -> Iterator[tuple[str, Plain]]:
        for name in self._variables(space):
            plain = self._plain(value := space.values[name])
            if plain is not _NOT_PLAIN:
                yield name, plain
            elif type(value) in _KINDS and len(value) > MOST_ITEMS:
                self.too_large.add(space.prefix + name)

    def _variables(self, space: Namespace) -> Sequence[str]:
        """All names but those of functions, classes and modules: most names are."""
        names = tuple(space.values)
        known, variables = self._known_variables.get(space.prefix, ((), ()))
        if known != names:
            variables = tuple(
                name
                for name in names
                if not isinstance(space.values[name], _CODE) and not name.startswith("__") and name not in space.without
            )
            self._known_variables[space.prefix] = names, variables
        return variables

    def _plain(self, value: Any, depth: int = _DEPTH) -> Plain:
        kind = type(value)
        if kind in _LEAVES:
            return value
        if depth == 0 or id(value) in self._known:
            return _NOT_PLAIN
        if kind is dict:
            return self._of_items("dict", value, depth)
        if kind in _KINDS:
            return self._of_sequence(_KINDS[kind], value, depth)
        if (
            isinstance(value, _CODE + _OF_TORCH)
            or not is_users_module(kind.__module__)
            or not hasattr(value, "__dict__")
        ):
            return _NOT_PLAIN
        return self._of_items("object", vars(value), depth)

    def _of_items(self, kind: str, items: Mapping[Any, Any], depth: int) -> Plain:
        """The plain ones of the items; the others are left as they are."""
        if len(items) > MOST_ITEMS:
            return _NOT_PLAIN
        found = [(key, self._plain(item, depth - 1)) for key, item in list(items.items()) if type(key) in _LEAVES]
        return kind, tuple((key, plain) for key, plain in found if plain is not _NOT_PLAIN)

    def _of_sequence(self, kind: str, items: Any, depth: int) -> Plain:
        """All of them, or none."""
        if len(items) > MOST_ITEMS:
            return _NOT_PLAIN
        in_order = sorted(items, key=repr) if kind == "set" else items
        plain = tuple(self._plain(item, depth - 1) for item in in_order)
        if any(each is _NOT_PLAIN or _kind_of(each) == "object" for each in plain):
            return _NOT_PLAIN
        return (kind, plain, items.maxlen) if kind == "deque" else (kind, plain)


def _is_name(name: str, space: Namespace) -> bool:
    return name.isidentifier() and name not in space.without


def _kind_of(plain: Plain) -> str:
    return plain[0] if type(plain) is tuple else ""


def _made(plain: Plain) -> Any:
    """_NOT_PLAIN: an object of the user's class, which only the user can make."""
    if type(plain) is not tuple:
        return plain
    kind, items, *bound = plain
    match kind:
        case "object":
            return _NOT_PLAIN
        case "dict":
            made = {key: _made(item) for key, item in items}
            return {key: item for key, item in made.items() if item is not _NOT_PLAIN}
        case _:
            return _TYPES[kind](map(_made, items), *bound)


def _assign(values: MutableMapping[Any, Any], name: Any, plain: Plain, plain_of: Callable[[Any], Plain]) -> None:
    """Write a value into the container that is there, which others may refer to. What is not plain any more stays."""
    there = values.get(name, _NOT_PLAIN)
    if there is not _NOT_PLAIN and plain_of(there) is _NOT_PLAIN:
        return
    kind = _kind_of(plain)
    match there:
        case list() if kind == "list":
            there[:] = map(_made, plain[1])
        case deque() if kind == "deque":
            there.clear()
            there.extend(map(_made, plain[1]))
        case set() if kind == "set":
            there.clear()
            there.update(map(_made, plain[1]))
        case dict() if kind == "dict":
            _merge(there, dict(plain[1]), plain_of)
        case _ if kind == "object" and there is not _NOT_PLAIN and hasattr(there, "__dict__"):
            _merge(vars(there), dict(plain[1]), plain_of)
        case _ if (made := _made(plain)) is not _NOT_PLAIN:
            values[name] = made


def _merge(there: MutableMapping[Any, Any], state: Mapping[Any, Plain], plain_of: Callable[[Any], Plain]) -> None:
    for key in [key for key, item in there.items() if key not in state and plain_of(item) is not _NOT_PLAIN]:
        del there[key]
    for key, plain in state.items():
        _assign(there, key, plain, plain_of)


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

    def begin_pass(self, iteration: int) -> None:
        """All passes of a step begin alike, also when it is repeated."""
        if self._joined is not None:
            self.write(self._joined)
            self._joined = None
        if iteration != self._iteration:
            self._iteration, self._before = iteration, self.read()
        else:
            self.write(self._before)


@runtime_checkable
class HasLoopState(Protocol):
    @property
    def loop_state(self) -> LoopState: ...


def plain_state_of(job: object, known: Iterable[Any]) -> PlainState:
    """Attributes of a job and of its classes, and variables of their modules; or those of a script's loop."""
    if isinstance(job, HasLoopState):
        return job.loop_state
    classes = [each for each in type(job).__mro__ if is_users_module(each.__module__)]
    modules = dict.fromkeys(each.__module__ for each in classes)
    namespaces = (
        Namespace("", vars(job), frozenset({"iteration", "is_over"}), may_delete=True),
        *(Namespace(f"{each.__name__}.", _ClassAttributes(each)) for each in classes),
        *(Namespace(f"{name}:", vars(sys.modules[name]), may_delete=True) for name in modules),
    )
    return PlainState(lambda: namespaces, known)


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
