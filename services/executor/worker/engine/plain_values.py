"""Plain values of user code: numbers, texts, small arrays, and containers and objects that hold them.

A plain value has a copy that can be compared, sent to other processes as it is, and written back into the container
that is there. A tensor is not plain: it belongs to the model, or is no state.
"""

import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from elasticflow.services.executor.worker.process.users_code import is_users_module

MOST_ITEMS = 10_000  # of a container: larger ones are data
MOST_BYTES = 1 << 16  # of an array: larger ones are data
DEPTH = 4  # of containers in containers
CODE = (FunctionType, ModuleType, type)
NOT_PLAIN = object()

_LEAVES = frozenset({int, float, bool, str, type(None)})
_SEQUENCES: Mapping[type, str] = {list: "list", tuple: "tuple", deque: "deque", set: "set", frozenset: "frozenset"}
_MAPPINGS: Mapping[type, str] = {
    dict: "dict",
    OrderedDict: "OrderedDict",
    Counter: "Counter",
    defaultdict: "defaultdict",
}
_TYPES: Mapping[str, Any] = {name: kind for kind, name in (_SEQUENCES | _MAPPINGS).items()}
_FACTORIES: Mapping[str, Any] = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set)}
_PACKED = (bytes, bytearray, complex, array.array, np.number, np.bool_, np.ndarray)
_OF_TORCH = (torch.Tensor, nn.Module, torch.optim.Optimizer, LRScheduler, DataLoader, Dataset)
_OBJECTS = ("object", "namespace")
_FIXED = ("tuple", "frozenset", "bytes", "complex", "scalar")  # which never change

Plain = Any
"""A leaf, or the kind of a value and what it holds: ("list", (1, 2)), ("deque", (1, 2), 5), ("dict", (("a", 1),)), or
of an array ("ndarray", its bytes as Latin-1, "<f4", (2, 3))."""


class OfObject(tuple[Any, ...]):
    """A plain value with the object, which may change, that it was read from: the name may have another one later."""

    of: Any

    @classmethod
    def read(cls, plain: tuple[Any, ...], of: Any) -> "OfObject":
        made = cls(plain)
        made.of = of
        return made


def to_send(plain: Plain) -> Plain:
    """The value without the objects of this process."""
    return tuple(map(to_send, plain)) if isinstance(plain, tuple) else plain


@dataclass(frozen=True, slots=True)
class Objects:
    """Of this process, by id. known: those whose state is kept otherwise. lasting: arrays that were there before a
    step, and so belong to the state."""

    known: frozenset[int] = frozenset()
    lasting: frozenset[int] = frozenset()


def plain_of(value: Any, of: Objects = Objects(), depth: int = DEPTH) -> Plain:
    """A copy of the value; NOT_PLAIN if it has none."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if depth == 0 or id(value) in of.known:
        return NOT_PLAIN
    if kind in _SEQUENCES:
        return _read_from(value, _of_sequence(_SEQUENCES[kind], value, of, depth))
    if kind in _MAPPINGS:
        return _read_from(value, _of_items(_MAPPINGS[kind], value, of, depth))
    if isinstance(value, _PACKED):
        return _read_from(value, _packed(value))
    if isinstance(value, CODE + _OF_TORCH):
        return NOT_PLAIN
    if kind is SimpleNamespace:
        return _read_from(value, _of_items("namespace", vars(value), of, depth))
    if not is_users_module(kind.__module__) or not (hasattr(value, "__dict__") or _slots_of(value)):
        return NOT_PLAIN
    return _read_from(value, _of_items("object", Attributes(value), of, depth))


def _read_from(value: Any, plain: Plain) -> Plain:
    """With the object, if that may change."""
    return OfObject.read(plain, value) if plain is not NOT_PLAIN and _kind_of(plain) not in _FIXED else plain


def is_too_large(value: Any) -> bool:
    """Whether it would be plain if it were smaller."""
    if isinstance(value, np.ndarray):
        return value.nbytes > MOST_BYTES and not value.dtype.hasobject
    return type(value) in _SEQUENCES.keys() | _MAPPINGS.keys() and len(value) > MOST_ITEMS


def assign(values: MutableMapping[Any, Any], name: Any, plain: Plain, of: Objects = Objects()) -> None:
    """Give the name the object of the value, with the value; of another process, write into the container that is
    there, which others may refer to. An array that is new there may be part of the data: the name gets another one.
    What is not plain any more stays.
    """
    there = values.get(name, NOT_PLAIN)
    now = NOT_PLAIN if there is NOT_PLAIN else plain_of(there, of)
    if there is not NOT_PLAIN and now is NOT_PLAIN:
        return
    if isinstance(plain, OfObject):
        values[name] = plain.of if _refill(plain.of, plain, of) else _made(tuple(plain), of)
        return
    is_alike = _kind_of(now) == _kind_of(plain) and (_kind_of(plain) != "ndarray" or id(there) in of.lasting)
    if not (is_alike and _refill(there, plain, of)) and (made := _made(plain, of)) is not NOT_PLAIN:
        values[name] = made


def arrays_in(plain: Plain) -> Iterator[int]:
    """The ids of the arrays that it was read from."""
    if isinstance(plain, OfObject) and _kind_of(plain) == "ndarray":
        yield id(plain.of)
    elif isinstance(plain, tuple):
        for each in plain:
            yield from arrays_in(each)


def _refill(there: Any, plain: Plain, of: Objects) -> bool:
    """Write a value of its kind into an object. False if it cannot have this one."""
    content = plain[1] if _kind_of(plain) else ()
    match there:
        case dict():
            _merge(there, dict(content), of)
        case list():
            there[:] = [_made(each, of) for each in content]
        case deque():
            there.clear()
            there.extend(_made(each, of) for each in content)
        case set():
            there.clear()
            there.update(_made(each, of) for each in content)
        case bytearray() | array.array():
            there[:] = _made(tuple(plain), of)
        case np.ndarray() if there.flags.writeable and (there.dtype.str, there.shape) == plain[2:]:
            there[...] = _made(tuple(plain), of)
        case _ if _kind_of(plain) in _OBJECTS:
            _merge(Attributes(there), dict(content), of)
        case _:
            return False
    return True


def _merge(there: MutableMapping[Any, Any], state: Mapping[Any, Plain], of: Objects) -> None:
    """Write all items, in their order: user code may add them up in it."""
    for key in [key for key, item in there.items() if key not in state and plain_of(item, of) is not NOT_PLAIN]:
        del there[key]
    for key, plain in state.items():
        assign(there, key, plain, of)
    mine = [key for key in state if key in there]
    if isinstance(there, dict) and [key for key in there if key in state] != mine:
        for key in mine:
            there[key] = there.pop(key)


def _of_items(kind: str, items: Mapping[Any, Any], of: Objects, depth: int) -> Plain:
    """The plain ones of the items; the others are left as they are."""
    if len(items) > MOST_ITEMS:
        return NOT_PLAIN
    found = [(key, plain_of(item, of, depth - 1)) for key, item in list(items.items()) if type(key) in _LEAVES]
    plain = tuple((key, each) for key, each in found if each is not NOT_PLAIN)
    if not isinstance(items, defaultdict):
        return kind, plain
    factory = items.default_factory
    is_known = factory in _FACTORIES.values()
    return kind, plain, factory.__name__ if is_known and factory is not None else "" if factory is None else "?"


def _of_sequence(kind: str, items: Any, of: Objects, depth: int) -> Plain:
    """All of them, or none. Arrays in a sequence are data."""
    if len(items) > MOST_ITEMS:
        return NOT_PLAIN
    plain = list[Plain]()
    for item in sorted(items, key=repr) if kind in ("set", "frozenset") else items:
        each = NOT_PLAIN if isinstance(item, np.ndarray) else plain_of(item, of, depth - 1)
        if each is NOT_PLAIN or _kind_of(each) in _OBJECTS:
            return NOT_PLAIN
        plain.append(each)
    return (kind, tuple(plain), items.maxlen) if kind == "deque" else (kind, tuple(plain))


def _packed(value: Any) -> Plain:
    """A value without parts of its own: its kind, its bytes as Latin-1, and what else makes it."""
    match value:
        case bytes():
            return "bytes", value.decode("latin-1")
        case bytearray():
            return "bytearray", value.decode("latin-1")
        case complex():
            return "complex", (value.real, value.imag)
        case array.array():
            return "array", value.tobytes().decode("latin-1"), value.typecode
        case np.generic():
            return "scalar", value.tobytes().decode("latin-1"), value.dtype.str
        case np.ndarray() if type(value) is np.ndarray and value.nbytes <= MOST_BYTES and not value.dtype.hasobject:
            return ("ndarray", value.tobytes().decode("latin-1"), value.dtype.str, value.shape)
        case _:
            return NOT_PLAIN


def _kind_of(plain: Plain) -> str:
    return plain[0] if isinstance(plain, tuple) else ""


def _made(plain: Plain, of: Objects) -> Any:
    """The object that has the value, or a new one. NOT_PLAIN: what only the user can make, an object of a class, or a
    dict with a function of the user's."""
    if not isinstance(plain, tuple):
        return plain
    if isinstance(plain, OfObject) and _refill(plain.of, plain, of):
        return plain.of
    kind, content, *more = plain
    match kind:
        case "object":
            return NOT_PLAIN
        case "defaultdict":
            return NOT_PLAIN if more[0] == "?" else defaultdict(_FACTORIES.get(more[0]), _items_made(content, of))
        case "dict" | "OrderedDict" | "Counter":
            return _TYPES[kind](_items_made(content, of))
        case "namespace":
            return SimpleNamespace(**_items_made(content, of))
        case "complex":
            return complex(*content)
        case "bytes" | "bytearray" | "array" | "scalar" | "ndarray":
            return _unpacked(kind, content.encode("latin-1"), more)
        case _:
            return _TYPES[kind]((_made(each, of) for each in content), *more)


def _items_made(items: tuple[tuple[Any, Plain], ...], of: Objects) -> dict[Any, Any]:
    made = {key: _made(item, of) for key, item in items}
    return {key: item for key, item in made.items() if item is not NOT_PLAIN}


def _unpacked(kind: str, content: bytes, more: list[Any]) -> Any:
    match kind:
        case "bytes":
            return content
        case "bytearray":
            return bytearray(content)
        case "array":
            return array.array(more[0], content)
        case "scalar":
            return np.frombuffer(content, more[0])[0]
        case _:
            return np.frombuffer(bytearray(content), more[0]).reshape(more[1])


# --- attributes ----------------------------------------------------------------------------------------


def _slots_of(value: Any) -> list[str]:
    """The names of slots, which have no __dict__."""
    names = list[str]()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


class Attributes(MutableMapping[str, Any]):
    """The attributes of an object by name, in its __dict__ and in slots."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._slots = {_mangled(type(of), name): None for name in _slots_of(of)}

    def __getitem__(self, name: str) -> Any:
        own = getattr(self._of, "__dict__", {})
        if name in own:
            return own[name]
        if name not in self._slots or not hasattr(self._of, name):
            raise KeyError(name)
        return getattr(self._of, name)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._slots:
            object.__setattr__(self._of, name, value)
        else:
            vars(self._of)[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._slots:
            object.__delattr__(self._of, name)
        else:
            del vars(self._of)[name]

    def __iter__(self) -> Iterator[str]:
        yield from getattr(self._of, "__dict__", {})
        yield from (name for name in self._slots if hasattr(self._of, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _mangled(kind: type, name: str) -> str:
    """The name that Python gives a private slot, by the class that declares it."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    owner = next(each for each in kind.__mro__ if name in vars(each).get("__slots__", ()))
    return f"_{owner.__name__.lstrip('_')}{name}"
