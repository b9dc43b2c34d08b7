"""Finds what users' code changes while it trains, and what the processes that read do not see (decision record 0082).

They were forked before the loop, and have the data set as it was then. Compared is what their code names and can
reach: in the data set, its collate function and its sampler, in what these hold, in globals, closures, classes and
modules. What the reading code changes by itself is its own: a cache, a counter, a file that it opens, and all that
set_epoch() sets. It is not compared, since an evaluation in this process may change it, too; nor is what a dict gets
in addition.

Names are taken from bytecode. An attribute that is called like one of the reading code's own, or is only reached by a
computed name, is not compared. What libraries other than torch and torchvision have made is compared by identity.
"""

import dis
import functools
import zlib
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from elasticflow.services.executor.worker.data.loader_settings import set_epoch_of
from elasticflow.services.executor.worker.engine.plain_values import NOT_PLAIN, Attributes, is_whole, plain_of
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.users_code import is_users_module

_MOST_HOLDERS = 10_000  # containers, objects, tensors and arrays that are compared
_LONGEST_NAME = 1000  # characters: what lies deeper is not compared
_MOST_ENTERED = 1000  # items of a container, evenly spread: the others are compared, but not what they hold
_MOST_BYTES = 1 << 24  # of all arrays: of more, evenly spread blocks are compared
_BLOCK_BYTES = 1 << 12
_MOST_SMALL = 32  # items of a container that is compared at any batch, and not only at the border of an epoch
_AT_A_TIME = 8  # small holders, one after another, at each batch
_MOST_NAMED = 3  # in the message

# --- names in code -------------------------------------------------------------------------------------

_CHANGE_THEIR_OBJECT = (
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "fill", "insert", "move_to_end"),
    *("pop", "popitem", "popleft", "put", "remove", "reverse", "rotate", "setdefault", "shuffle", "sort", "subtract"),
    *("update", "write"),
)
_SET_BY_NAME = ("setattr", "__setattr__", "__dict__", "vars")
_NOT_OF_READING = (
    *("__init__", "__new__", "__post_init__", "__init_subclass__", "__del__", "__repr__", "__str__"),
    *("__setattr__", "__setitem__", "__delitem__", "__setstate__", "__iadd__", "__isub__", "__imul__"),
)


@dataclass(slots=True)
class _Names:
    """What code names: attributes, and texts that may name some; globals; and of both, what it changes itself."""

    attributes: set[str] = field(default_factory=set[str])
    globals: set[str] = field(default_factory=set[str])
    own: set[str] = field(default_factory=set[str])

    def add(self, other: "_Names") -> None:
        self.attributes |= other.attributes
        self.globals |= other.globals
        self.own |= other.own


@functools.lru_cache(maxsize=4096)
def _names_in(code: CodeType) -> _Names:
    """Of a function, and of those within it."""
    found = _Names()
    loads, calls, changes = list[tuple[str, Any]](), list[Any](), list[Any]()  # each with its place in the source
    texts, aliases, loaded = list[tuple[str, Any]](), dict[str, str](), ""  # loaded: by the instruction before
    for each in dis.get_instructions(code):
        name, before, loaded = each.argval, loaded, ""
        match each.opname:
            case "LOAD_ATTR" | "LOAD_METHOD" | "LOAD_SUPER_ATTR":
                found.attributes.add(loaded := name)
                loads.append((name, each.positions))
                if name in _CHANGE_THEIR_OBJECT or (name.endswith("_") and name[0] != "_"):
                    changes.append(each.positions)
            case "LOAD_GLOBAL" | "LOAD_NAME":
                found.globals.add(loaded := name)
                loads.append((name, each.positions))
            case "LOAD_DEREF":
                loads.append((name, each.positions))
            case "LOAD_CONST" if isinstance(name, str) and name.isidentifier():
                texts.append((name, each.positions))
            case "STORE_FAST" if before:
                aliases[name] = before
            case operation if operation.startswith("LOAD_FAST"):
                first = name[0] if isinstance(name, tuple) else name  # newer Pythons load two at once
                if first in aliases:
                    loads.append((aliases[first], each.positions))
            case "STORE_ATTR" | "DELETE_ATTR" | "STORE_GLOBAL" | "DELETE_GLOBAL":
                found.own.add(name)
            case "STORE_DEREF" if name in code.co_freevars:
                found.own.add(name)
            case "STORE_SUBSCR" | "DELETE_SUBSCR":
                changes.append(each.positions)
            case operation if operation.startswith("CALL"):
                calls.append(each.positions)
            case _:
                pass
    for change in changes:
        if not any(_is_within(call, change) for call in calls):  # which returns another object
            found.own |= {name for name, place in loads if _is_within(place, change)}
    shuffled = {place.lineno for name, place in loads if name == "shuffle"}
    found.own |= {name for name, place in loads if place.lineno in shuffled}  # its argument
    set_by_name = {place.lineno for name, place in loads if name in _SET_BY_NAME}
    found.own |= {text for text, place in texts if place.lineno in set_by_name}
    found.attributes |= {text for text, _ in texts}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.add(_names_in(constant))
    return found


def _is_within(inner: Any, outer: Any) -> bool:
    """Of places in the source."""
    if None in inner or None in outer:
        return False
    begins = (outer.lineno, outer.col_offset) <= (inner.lineno, inner.col_offset)
    return begins and (inner.end_lineno, inner.end_col_offset) <= (outer.end_lineno, outer.end_col_offset)


def _functions_of(member: Any) -> list[FunctionType]:
    """The functions of an attribute of a class, or of a decorated function."""
    match member:
        case FunctionType():
            return [member]
        case staticmethod() | classmethod():
            return _functions_of(member.__func__)
        case property():
            return [each for each in (member.fget,) if isinstance(each, FunctionType)]
        case functools.cached_property():
            return _functions_of(member.func)
        case _ if "__wrapped__" in getattr(member, "__dict__", {}):  # as of lru_cache
            return _functions_of(member.__wrapped__)
        case _:
            return []


# --- what holds values ---------------------------------------------------------------------------------


class _Holder(Protocol):
    """Something that may change. is_small: compared at each batch."""

    way: frozenset[str]  # names that lead to it
    is_small: bool
    has_equal: bool  # an equal value that is another object

    def differences(self, whole: bool) -> Iterator[str]:
        """The paths of what differs from before. whole: also what takes long to compare."""
        ...


class _Named:
    """Attributes, globals, or the items of a dict."""

    def __init__(self, path: str, way: frozenset[str], read: Callable[[], Mapping[Any, Any]], joint: str) -> None:
        self.path, self.way = path, way
        self._read, self._joint = read, joint
        self._before = dict(read())
        self._is_dict = joint == _ITEM
        self.is_small, self.has_equal = len(self._before) <= _MOST_SMALL, False

    def differences(self, whole: bool) -> Iterator[str]:
        del whole
        now, before = self._read(), self._before
        for name, value in before.items():
            there = now.get(name, _GONE)
            if there is value:
                continue
            if not _is_equal(value, there):
                yield self._joint.format(self.path, name).lstrip(".")
            elif not isinstance(value, _NO_DATA):
                self.has_equal = True
        if not self._is_dict and len(now) > len(before):
            yield from (self._joint.format(self.path, name).lstrip(".") for name in now if name not in before)


class _Items:
    """Of a list."""

    def __init__(self, path: str, way: frozenset[str], of: Sequence[Any]) -> None:
        self.path, self.way, self._of = path, way, of
        self._before = list(of)
        self.is_small, self.has_equal = len(of) <= _MOST_SMALL, False

    def differences(self, whole: bool) -> Iterator[str]:
        del whole
        if len(self._of) != len(self._before):
            yield self.path
            return
        for index, (before, now) in enumerate(zip(self._before, self._of, strict=True)):
            if before is now:
                continue
            if not _is_equal(before, now):
                yield _ITEM.format(self.path, index)
            elif not isinstance(before, _NO_DATA):
                self.has_equal = True


class _Content:
    """Of a tensor, an array or a set. quick: what shows at any batch; full: what takes long."""

    def __init__(self, path: str, way: frozenset[str], quick: Callable[[], Any], full: Callable[[int], Any]) -> None:
        self.path, self.way, self._quick, self._full = path, way, quick, full
        self.is_small, self.has_equal = True, False

    def keep(self, most_bytes: int) -> None:
        """Of the content of an array, at most these are compared."""
        self._most_bytes = most_bytes
        self._before = self._quick(), self._full(most_bytes)

    def differences(self, whole: bool) -> Iterator[str]:
        if self._quick() != self._before[0] or (whole and self._full(self._most_bytes) != self._before[1]):
            yield self.path


_GONE = object()
_ATTRIBUTE, _ITEM = "{}.{}", "{}[{!r}]"


def _is_equal(before: Any, now: Any) -> bool:
    """Whether both are values, of which one is as good as the other."""
    plain = plain_of(before)
    return plain is not NOT_PLAIN and is_whole(before, plain) and plain == plain_of(now)


def _digest(values: np.ndarray[Any, Any], most_bytes: int) -> int:
    if isinstance(values, np.memmap) or values.dtype.hasobject or values.size == 0:
        return 0  # a mapped file may be shared with the processes that read
    values = np.asarray(values)
    if not values.flags.c_contiguous:
        values = np.ascontiguousarray(values[:: values.nbytes // most_bytes + 1])
    content = values.reshape(-1).view(np.uint8).data
    if len(content) <= most_bytes:
        return zlib.crc32(content)
    digest, apart = 0, len(content) // (most_bytes // _BLOCK_BYTES)
    for start in range(0, len(content), apart):
        digest = zlib.crc32(content[start : start + _BLOCK_BYTES], digest)
    return digest


def _version_of(tensor: torch.Tensor) -> int:
    """Changes with each change by torch, not with one by numpy, which may share the memory."""
    return 0 if tensor.is_inference() else tensor._version


def _digest_of_tensor(tensor: torch.Tensor, most_bytes: int) -> int:
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.is_conj() or tensor.is_neg():
        return 0
    try:
        return _digest(tensor.detach().numpy(), most_bytes)
    except (TypeError, RuntimeError):  # a type of numbers, or of tensors, that numpy does not have
        return 0


# --- what readers can reach ----------------------------------------------------------------------------

_LIBRARIES = ("torch", "torchvision")
_NO_DATA = (int, float, str, bytes, nn.Parameter, torch.optim.Optimizer, LRScheduler, DataLoader)
_OF_EACH_MODULE = frozenset(vars(nn.Module())) - {"_modules"}  # which training changes


@dataclass(slots=True)
class _Group:
    """Values by name, of which those are compared that the code names."""

    path: str
    way: frozenset[str]
    values: Callable[[], Mapping[str, Any]]
    names: AbstractSet[str]
    entered: set[str] = field(default_factory=set[str])

    def named(self) -> dict[str, Any]:
        values, names = self.values(), self.names
        if len(names) < len(values):
            return {name: values[name] for name in names if name in values}
        return {name: value for name, value in values.items() if name in names}


class _Reach:
    """All that readers can reach from some objects, with their names. known: objects whose state is kept otherwise.
    job: of which only that is compared which its own reading code names."""

    def __init__(self, roots: Iterable[tuple[str, Any]], known: Iterable[Any], job: Any) -> None:
        self._code = _Names(attributes={"__wrapped__"})  # as functools.wraps() names it
        self._known = {id(each) for each in known}
        self._job = job
        self._of_job = _Names()
        self._alive = list[Any]()  # so that ids stay
        self._seen = set[int]()
        self._groups = list[_Group]()
        self._globals = dict[int, set[str]]()  # names, by the id of a module's globals
        self._classes = dict[type, set[str]]()  # with their members that were entered
        self._holders = list[_Holder]()
        for path, root in roots:
            self._enter(root, path, frozenset())
        while self._enter_names():
            pass

    def holders(self) -> list[_Holder]:
        """All but what the reading code changes itself."""
        own, groups = self._code.own, list[_Holder]()
        for group in self._groups:
            group.names -= own  # another set: the names that code has are those of many groups
            groups.append(_Named(group.path, group.way, group.named, _ATTRIBUTE))
        holders = [each for each in (*groups, *self._holders) if not each.way & own]
        contents = [each for each in holders if isinstance(each, _Content)]
        for content in contents:
            content.keep(max(_MOST_BYTES // len(contents), _BLOCK_BYTES))
        return holders

    def _enter_names(self) -> bool:
        """Enter what the code names by now. Returns whether something was new."""
        before = len(self._alive), len(self._code.attributes), sum(map(len, self._globals.values()))
        for group in self._groups:  # to which this adds
            for name, value in group.named().items():
                if name not in group.entered:
                    group.entered.add(name)
                    self._enter(value, _ATTRIBUTE.format(group.path, name).lstrip("."), group.way | {name})
        for kind in list(self._classes):
            for name, member in list(vars(kind).items()):
                self._enter_member(kind, name, member)
        return before != (len(self._alive), len(self._code.attributes), sum(map(len, self._globals.values())))

    def _enter_member(self, kind: type, name: str, member: Any) -> None:
        is_special = name.startswith("__") and name.endswith("__") and name not in _NOT_OF_READING
        is_of_job = self._job is not None and isinstance(self._job, kind)
        is_named = name in self._of_job.attributes if is_of_job else name in self._code.attributes
        if name in self._classes[kind] or not (is_named or (not is_of_job and (is_special or name == "forward"))):
            return
        self._classes[kind].add(name)
        if isinstance(member, functools.cached_property):
            self._code.own.add(name)
        for function in _functions_of(member):
            self._enter_function(function, f"{kind.__name__}.{name}", frozenset())
            if is_of_job:
                self._of_job.add(_names_in(function.__code__))

    def _enter(self, value: Any, path: str, way: frozenset[str]) -> None:
        if id(value) in self._seen or id(value) in self._known:
            return
        if len(self._holders) + len(self._groups) >= _MOST_HOLDERS or len(path) > _LONGEST_NAME:
            return
        if value is None or isinstance(value, _NO_DATA):
            return
        self._seen.add(id(value))
        self._alive.append(value)
        match value:
            case torch.Tensor():
                full = functools.partial(_digest_of_tensor, value)
                self._holders.append(_Content(path, way, functools.partial(_version_of, value), full))
            case np.ndarray():
                self._holders.append(_Content(path, way, lambda: value.shape, functools.partial(_digest, value)))
            case set() | bytearray():
                self._holders.append(_Content(path, way, lambda: len(value), lambda _: value.copy()))
            case dict():
                self._holders.append(_Named(path, way, lambda: value, _ITEM))
                self._enter_items(value.items(), len(value), path, way)
                self._enter_attributes(value, path, way)
            case list() | deque() | tuple():
                if not isinstance(value, tuple):
                    self._holders.append(_Items(path, way, value))
                self._enter_items(enumerate(value), len(value), path, way)
                self._enter_attributes(value, path, way)
            case ModuleType():
                if is_users_module(value.__name__):
                    self._groups.append(_Group(path, way, lambda: vars(value), self._code.attributes))
            case type():
                self._enter_class(value)
            case _:
                self._enter_object(value, path, way)

    def _enter_items(self, items: Iterable[tuple[Any, Any]], count: int, path: str, way: frozenset[str]) -> None:
        for key, item in list(islice(items, 0, None, count // _MOST_ENTERED + 1)):
            self._enter(item, _ITEM.format(path, key), way)

    def _enter_object(self, value: Any, path: str, way: frozenset[str]) -> None:
        match value:
            case MethodType():
                self._enter(value.__self__, "self" if value.__self__ is self._job else path, way)
                self._enter_function(value.__func__, path, way)
                if value.__self__ is self._job:
                    self._of_job.add(_names_in(value.__func__.__code__))
            case functools.partial():
                self._enter(value.func, path, way)
                self._enter(value.args, path, way)
                self._enter(value.keywords, path, way)
            case _ if functions := _functions_of(value):
                for function in functions:
                    self._enter_function(function, path, way)
            case _ if value is self._job:
                self._enter_class(type(value))
                self._groups.append(_Group(path, way, lambda: vars(value), self._of_job.attributes))
            case Namespace() | SimpleNamespace():
                self._groups.append(_Group(path, way, lambda: vars(value), self._code.attributes))
            case _:
                self._enter_attributes(value, path, way)

    def _enter_attributes(self, value: Any, path: str, way: frozenset[str]) -> None:
        kind = type(value)
        if kind.__module__.partition(".")[0] not in _LIBRARIES and not is_users_module(kind.__module__):
            return
        self._enter_class(kind)
        if isinstance(value, nn.Module):
            values = functools.partial(_of_module, value)
        elif any("__slots__" in vars(each) for each in kind.__mro__) or not hasattr(value, "__dict__"):
            values = functools.partial(dict, Attributes(value))
        else:
            values = functools.partial(vars, value)
        self._groups.append(_Group(path, way, values, self._code.attributes))

    def _enter_class(self, kind: type) -> None:
        for each in kind.__mro__:
            if each in self._classes or each in (object, nn.Module):
                continue
            self._classes[each] = set()
            if is_users_module(each.__module__):
                names = self._of_job.attributes if isinstance(self._job, each) else self._code.attributes
                self._groups.append(_Group(each.__name__, frozenset(), functools.partial(_values_of, each), names))

    def _enter_function(self, function: FunctionType, path: str, way: frozenset[str]) -> None:
        names = _names_in(function.__code__)
        self._code.add(names)
        if not is_users_module(function.__module__ or ""):
            return
        known = self._globals.get(id(function.__globals__))
        if known is None:
            known = self._globals[id(function.__globals__)] = set()
            values = function.__globals__
            self._groups.append(_Group("", frozenset(), lambda: values, known))
        known |= names.globals
        if function.__closure__:
            cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
            self._groups.append(_Group("", way, functools.partial(_in_cells, cells), set(cells) - {"__class__"}))
        self._enter(function.__defaults__, path, way)
        self._enter(function.__kwdefaults__, path, way)
        self._groups.append(_Group(path, way, lambda: vars(function), self._code.attributes))


def _of_module(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_EACH_MODULE}


def _values_of(kind: type) -> dict[str, Any]:
    """The attributes of a class that are no code."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not (name.startswith("__") or hasattr(type(value), "__get__"))
    }


def _in_cells(cells: Mapping[str, Any]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name, cell in cells.items():
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return found


def _name_of(root: Any) -> str:
    return getattr(root, "__name__", "") or type(root).__name__


# --- the check -----------------------------------------------------------------------------------------


class UnseenChanges:
    """Made when the processes that read begin.

    reading: what they call beside the data set. known: objects whose state is kept otherwise. job: of a class.
    """

    def __init__(self, dataset: Any, *reading: Any, known: Iterable[Any] = (), job: Any = None) -> None:
        roots = [("dataset", dataset), ("set_epoch", getattr(set_epoch_of(dataset), "__func__", None))]
        roots += [(_name_of(each), each) for each in reading]
        self._reach = functools.partial(_Reach, roots, list(known), job)
        self._begin()
        self._where, self._batch = ("train() or evaluate()", "train()") if job else ("the loop", "the loop")

    def _begin(self) -> None:
        self._holders = self._reach().holders()
        self._small = [each for each in self._holders if each.is_small]
        self._next = 0

    def require_none(self, *, whole: bool) -> None:
        """Raises TrainingFailed. whole: all is compared, at the border of an epoch; else some of what is small."""
        compared = self._holders
        if not whole:
            begin = self._next
            compared = self._small[begin : begin + _AT_A_TIME]
            self._next = begin + _AT_A_TIME if begin + _AT_A_TIME < len(self._small) else 0
        for holder in compared:
            for _ in holder.differences(whole):
                self._refuse()
        if whole and any(each.has_equal for each in self._holders):
            self._begin()  # what is there now is compared from here on

    def _refuse(self) -> None:
        found = dict.fromkeys(path for holder in self._holders for path in holder.differences(True))
        names = ", ".join(islice(found, _MOST_NAMED)) + (" and others" if len(found) > _MOST_NAMED else "")
        raise TrainingFailed(
            f"{self._where} changed {names}, which the processes that read the data do not see: they go on with what "
            "was there before. Give the data set a method set_epoch(epoch), which they call, and let its samples "
            f"follow from that; or change the batch in {self._batch}"
        )
