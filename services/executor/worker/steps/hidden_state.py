"""What user code may keep from step to step although it is no state of its job: found by walking through its objects.

Attributes of the job, of its classes and of the model, variables of its modules and closures, random generators,
iterators, and what containers hold. A walk names what a step has changed; it changes nothing.
"""

import itertools
import pickle
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from random import Random  # noqa: TID251 - of user code
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import structlog
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from elasticflow.services.executor.worker.data.stream_reader import checksum_of
from elasticflow.services.executor.worker.process.users_code import is_users_module, items_of

_MOST_BYTES, _MOST_ITEMS = 1 << 26, 1000  # of one value: larger ones are data
_DEPTH = 5
_OF_WORKER = frozenset({"iteration", "is_over"})
_ATTRIBUTES_OF_MODULE = frozenset(vars(nn.Module()))
_DATA = (DataLoader, Dataset, torch.optim.Optimizer, LRScheduler)  # compared otherwise
_COUNTERS = (itertools.count, itertools.cycle, itertools.repeat)

log = structlog.get_logger()


def values_by_name(job: object, model: nn.Module) -> dict[str, Any]:
    """Of all that user code may have changed, in a form to compare."""
    return {**_plain_attributes(model), **_Walk(model).of_job(job)}


def is_plain(compared: Any) -> bool:
    """Whether a value is a part of the plain state, or of what follows from it."""
    return isinstance(compared, tuple | int)


class _Walk:
    def __init__(self, model: nn.Module) -> None:
        self._seen = {id(model)}
        self._found: dict[str, Any] = {}

    def of_job(self, job: object) -> dict[str, Any]:
        for name, value in list(vars(job).items()):
            if name not in _OF_WORKER:
                self._visit(f"self.{name}", value, _DEPTH)
        for kind in type(job).__mro__:
            if is_users_module(kind.__module__):
                self._visit_all(f"{kind.__name__}.", vars(kind))
        for name in [name for name in list(sys.modules) if is_users_module(name)]:
            self._visit_all("", vars(sys.modules[name]))
        return self._found

    def _visit_all(self, prefix: str, values: Mapping[str, Any]) -> None:
        for name, value in list(values.items()):
            if not name.startswith("__") and not isinstance(value, ModuleType | type):
                self._visit(prefix + name, value, _DEPTH)

    def _visit(self, name: str, value: Any, depth: int) -> None:
        compared = _compared(value)
        if compared is not None:
            self._found[name] = compared
        elif depth > 0 and id(value) not in self._seen and not isinstance(value, _DATA):
            self._seen.add(id(value))
            for of_item, item in _items_of(value):
                self._visit(name + of_item, item, depth - 1)


def _compared(value: Any) -> Any:
    """None: nothing by itself."""
    match value:
        case bool() | int() | float() | complex() | str() | bytes():
            return type(value), value if len(repr(value)) < _MOST_ITEMS else zlib.crc32(repr(value).encode())
        case torch.Tensor():
            return checksum_of(value, 0) if value.nbytes <= _MOST_BYTES and not value.is_sparse else None
        case np.ndarray() if value.dtype != object:
            return checksum_of(value, 0) if value.nbytes <= _MOST_BYTES else None
        case torch.Generator():
            return checksum_of(value.get_state(), 0)
        case np.random.Generator():
            return repr(value.bit_generator.state)
        case np.random.RandomState():
            return zlib.crc32(repr(value.get_state()).encode())
        case Random():
            return zlib.crc32(repr(value.getstate()).encode())
        case _ if isinstance(value, _COUNTERS):
            return repr(value)
        case _:
            return None


def _items_of(value: Any) -> Iterable[tuple[str, Any]]:
    match value:
        case list() | tuple() | deque():
            first = list(itertools.islice(value, _MOST_ITEMS))
            return [("'s length", len(value)), *items_of(first, _MOST_ITEMS)]
        case set() | frozenset():
            return [("'s length", len(value))]
        case FunctionType():
            return _of_function(value)
        case MethodType():
            return [("", value.__func__), ("'s object", value.__self__)]
        case nn.Module():
            return []
        case _:
            return items_of(value, _MOST_ITEMS)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    if not is_users_module(function.__module__ or ""):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    for number, default in enumerate(function.__defaults__ or ()):
        yield f"'s default {number}", default
    for name, value in vars(function).items():
        yield f".{name}", value


def _plain_attributes(model: nn.Module) -> dict[str, bytes]:
    """Attributes that no state_dict holds, by module and name, pickled; those that cannot be pickled are skipped."""
    found: dict[str, bytes] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in _ATTRIBUTES_OF_MODULE:
                continue
            try:
                found[f"model.{path}.{name}".replace("..", ".")] = pickle.dumps(_detached(value))
            except Exception as error:  # pickle raises whatever the object does
                log.debug("attribute_not_compared", name=name, reason=str(error))
    return found


def _detached(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
