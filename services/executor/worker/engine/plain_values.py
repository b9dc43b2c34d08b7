"""Plain values of user code: numbers, texts, small arrays, and containers and objects that hold them.

A plain value has a copy that can be compared, sent to other processes as it is, and written back into the container
that is there. A tensor is not plain: it belongs to the model, or is no state.
"""

import array
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
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
_FIXED = ("tuple", "frozenset", "bytes", "complex", "scalar", "enum")  # which never change

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
    """A copy of the value; NOT_PLAIN if it has none. depth: of containers that are still read."""
    kind = type(value)
    if kind in _LEAVES:
        return value
    if depth == 0 or id(value) in of.known:
        return NOT_PLAIN
    if kind in _SEQUENCES:
        return _read_from(value, _of_sequence(_SEQUENCES[kind], value, of, depth))
    if kind in _MAPPINGS:
        return _read_from(value, _of_mapping(_MAPPINGS[kind], value, of, depth))
    if isinstance(value, _PACKED):
        return _read_from(value, _packed(value))
    if isinstance(value, CODE + _OF_TORCH):
        return NOT_PLAIN
    if kind is SimpleNamespace:
        return _read_from(value, ("namespace", _of_items(vars(value), of, depth)))
    if not is_users_module(kind.__module__):
        return NOT_PLAIN
    if isinstance(value, Enum):
        return "enum", value.name, _name_of(kind)
    if not (hasattr(value, "__dict__") or _slots_of(value)):
        return NOT_PLAIN
    attributes = Attributes(value)
    items = _of_items(attributes, of, depth)
    return _read_from(value, ("object", items, _name_of(kind), len(items) == len(attributes)))


def _read_from(value: Any, plain: Plain) -> Plain:
    """With the object, if that may change."""
    return OfObject.read(plain, value) if plain is not NOT_PLAIN and _kind_of(plain) not in _FIXED else plain


def is_too_large(value: Any) -> bool:
    """Whether it would be plain if it were smaller."""
    if isinstance(value, np.ndarray):
        return value.nbytes > MOST_BYTES and not value.dtype.hasobject
    if isinstance(value, bytes | bytearray | array.array):
        return memoryview(value).nbytes > MOST_BYTES
    return type(value) in _SEQUENCES.keys() | _MAPPINGS.keys() and len(value) > MOST_ITEMS


def assign(
    values: MutableMapping[Any, Any], name: Any, plain: Plain, of: Objects = Objects(), depth: int = DEPTH
) -> None:
    """Give the name the object of the value, with the value; of another process, write into the object that is there,
    which others may refer to. An array that is new there may be part of the data: the name gets another one. What is
    not plain any more stays.
    """
    there = values.get(name, NOT_PLAIN)
    now = NOT_PLAIN if there is NOT_PLAIN else plain_of(there, of, depth)
    if there is not NOT_PLAIN and now is NOT_PLAIN:
        return
    if isinstance(plain, OfObject):
        values[name] = plain.of if _refill(plain.of, plain, of, depth) else _made(tuple(plain), of, depth)
    elif not (_is_alike(there, now, plain, of) and _refill(there, plain, of, depth)):
        made = _made(plain, of, depth)
        if made is not NOT_PLAIN:
            values[name] = made


def _is_alike(there: Any, now: Plain, plain: Plain, of: Objects) -> bool:
    """Whether the object that is there may get the value of one in another process."""
    match kind := _kind_of(plain):
        case "ndarray":
            return _kind_of(now) == kind and id(there) in of.lasting
        case "object":
            is_frozen = getattr(getattr(there, "__dataclass_params__", None), "frozen", False)
            return _kind_of(now) == kind and now[2] == plain[2] and not is_frozen
        case _:
            return _kind_of(now) == kind


def arrays_in(plain: Plain) -> Iterator[int]:
    """The ids of the arrays that it was read from."""
    if isinstance(plain, OfObject) and _kind_of(plain) == "ndarray":
        yield id(plain.of)
    elif isinstance(plain, tuple):
        for each in plain:
            yield from arrays_in(each)


def _refill(there: Any, plain: Plain, of: Objects, depth: int) -> bool:
    """Write a value of its kind into an object. False if it cannot have this one."""
    match _kind_of(plain):
        case "object" | "namespace":
            _merge(Attributes(there), dict(plain[1]), of, depth)
        case "dict" | "OrderedDict" | "Counter" | "defaultdict":
            _merge(there, dict(plain[1]), of, depth)
        case "list":
            there[:] = [_made(each, of, depth - 1) for each in plain[1]]
        case "deque" if there.maxlen == plain[2]:
            made = [_made(each, of, depth - 1) for each in plain[1]]
            there.clear()
            there.extend(made)
        case "set":
            made = [_made(each, of, depth - 1) for each in plain[1]]
            there.clear()
            there.update(made)
        case "bytearray":
            there[:] = _made(tuple(plain), of, depth)
        case "array" if there.typecode == plain[2]:
            there[:] = _made(tuple(plain), of, depth)
        case "ndarray" if there.flags.writeable and (there.dtype.str, there.shape) == plain[2:]:
            there[...] = _made(tuple(plain), of, depth)
        case _:
            return False
    return True


def _merge(there: MutableMapping[Any, Any], state: Mapping[Any, Plain], of: Objects, depth: int) -> None:
    """Write all items, in their order: user code may add them up in it. Those that were not read stay."""
    gone = [key for key, item in there.items() if key not in state and type(key) in _LEAVES]
    for key in gone:
        if plain_of(there[key], of, depth - 1) is not NOT_PLAIN:
            del there[key]
    for key, plain in state.items():
        assign(there, key, plain, of, depth - 1)
    mine = [key for key in state if key in there]
    if isinstance(there, dict) and [key for key in there if key in state] != mine:
        for key in mine:
            there[key] = there.pop(key)


def _of_items(items: Mapping[Any, Any], of: Objects, depth: int) -> tuple[tuple[Any, Plain], ...]:
    """The plain ones of the items; the others are left as they are."""
    found = [(key, plain_of(item, of, depth - 1)) for key, item in list(items.items()) if type(key) in _LEAVES]
    return tuple((key, each) for key, each in found if each is not NOT_PLAIN)


def _of_mapping(kind: str, items: Mapping[Any, Any], of: Objects, depth: int) -> Plain:
    """One that holds nothing plain, such as weights by name, is no state: another process would have an empty one."""
    if len(items) > MOST_ITEMS:
        return NOT_PLAIN
    plain = _of_items(items, of, depth)
    if items and not plain:
        return NOT_PLAIN
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
        if each is NOT_PLAIN or not is_whole(item, each):
            return NOT_PLAIN
        plain.append(each)
    return (kind, tuple(plain), items.maxlen) if kind == "deque" else (kind, tuple(plain))


def is_whole(value: Any, plain: Plain) -> bool:
    """Whether another process can make it from its copy."""
    match _kind_of(plain):
        case "object" | "namespace":
            return False
        case "dict" | "OrderedDict" | "Counter" | "defaultdict":
            is_all = len(plain[1]) == len(value) and plain[2:] != ("?",)
            return is_all and all(is_whole(value[key], each) for key, each in plain[1])
        case _:
            return True


def _packed(value: Any) -> Plain:
    """A value without parts of its own: its kind, its bytes as Latin-1, and what else makes it."""
    if is_too_large(value):
        return NOT_PLAIN
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
        case np.ndarray() if type(value) is np.ndarray and value.dtype.names is None and not value.dtype.hasobject:
            return ("ndarray", value.tobytes().decode("latin-1"), value.dtype.str, value.shape)
        case _:
            return NOT_PLAIN


def _kind_of(plain: Plain) -> str:
    return plain[0] if isinstance(plain, tuple) else ""


def _made(plain: Plain, of: Objects, depth: int) -> Any:
    """The object that has the value, or a new one. NOT_PLAIN: what only the user can make, such as an object with
    attributes that are not plain, or a dict with a function of the user's."""
    if not isinstance(plain, tuple):
        return plain
    if isinstance(plain, OfObject) and _refill(plain.of, plain, of, depth):
        return plain.of
    kind, content, *more = plain
    match kind:
        case "enum":
            return getattr(_class_named(more[0]), content, NOT_PLAIN)
        case "object":
            made = _new(_class_named(more[0])) if more[1] else NOT_PLAIN
            if made is not NOT_PLAIN:
                Attributes(made).update(_items_made(content, of, depth))
            return made
        case "defaultdict":
            made = _items_made(content, of, depth)
            return NOT_PLAIN if more[0] == "?" else defaultdict(_FACTORIES.get(more[0]), made)
        case "dict" | "OrderedDict" | "Counter":
            return _TYPES[kind](_items_made(content, of, depth))
        case "namespace":
            return SimpleNamespace(**_items_made(content, of, depth))
        case "complex":
            return complex(*content)
        case "bytes" | "bytearray" | "array" | "scalar" | "ndarray":
            return _unpacked(kind, content.encode("latin-1"), more)
        case _:
            return _TYPES[kind]((_made(each, of, depth - 1) for each in content), *more)


def _items_made(items: tuple[tuple[Any, Plain], ...], of: Objects, depth: int) -> dict[Any, Any]:
    made = {key: _made(item, of, depth - 1) for key, item in items}
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


def _name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_named(name: str) -> Any:
    """The class of the user's; None if this process has none of this name."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and is_users_module(found.__module__) else None


def _new(kind: Any) -> Any:
    """An object without attributes; NOT_PLAIN if only its class can make one."""
    try:
        return NOT_PLAIN if kind is None else kind.__new__(kind)
    except TypeError:
        return NOT_PLAIN


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
