"""Attributes that user code gives modules while it trains: plain ones are state of the job, others are refused.

`crit.label_smoothing = 0.2` in epoch 3, `model.dropout.p = 0.5`: the modules are a library's, and most of what they
have is no state. So nothing is read in each step, but what user code sets is noted when it does: torch's __setattr__ of
modules tells of it. Names of what was set, and their values, go with the plain state. What a library sets by itself,
such as a cache of the last forward pass, is not noted.
"""

# pyright: reportPrivateUsage=false
# (torch has no other way to tell a buffer from an attribute)

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Set
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn

from elasticflow.services.executor.worker.engine.plain_state import Namespace, is_users_attribute, is_users_class
from elasticflow.services.executor.worker.engine.plain_values import NOT_PLAIN, plain_of
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.users_code import is_users_frame
from elasticflow.shared.runtime.process.logs import log

PREFIX = "attribute "  # of names in a state

Reachable: TypeAlias = Callable[[], Iterable[tuple[str, nn.Module]]]
"""Modules that user code reaches, with their names, which are the same in every process."""

_ABSENT = object()
_OF_MODULES = frozenset(vars(nn.Module()))  # modes are flags of the model, the others are its structure
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)


@dataclass(slots=True)
class _Attribute:
    """before: its value before the first change, of a tensor a reference. iteration: of its last change."""

    of: nn.Module
    name: str
    before: Any
    iteration: int

    @property
    def value(self) -> Any:
        return _values_of(self.of, self.name).get(self.name, _ABSENT)

    def set(self, value: Any) -> None:
        _values_of(self.of, self.name)[self.name] = value

    def undo(self) -> None:
        before = self.before() if isinstance(self.before, weakref.ref) else self.before
        if self.before is _ABSENT:
            _values_of(self.of, self.name).pop(self.name, None)
        elif before is self.before or before is not None:
            self.set(before)


def _values_of(module: nn.Module, name: str) -> dict[str, Any]:
    """The attributes among which this one is."""
    own = vars(module)
    for registered in ("_buffers", "_parameters", "_modules"):
        if name in own.get(registered, ()):
            return own[registered]
    return own


class ChangedAttributes(MutableMapping[str, Any]):
    """Attributes by name, from their first change on. Without an entry, an attribute is as the code made it.

    known: ids of the objects whose tensors are state, but for the model.
    """

    def __init__(self, model: nn.Module, reachable: Reachable, known: Set[int] = frozenset()) -> None:
        self._of_model, self._known = frozenset(map(id, model.modules())), known
        self._reachable = reachable
        self._set: dict[str, _Attribute] = {}
        self._noted: dict[tuple[int, str], tuple[weakref.ref[nn.Module], Any, int]] = {}  # that have no name yet
        self._iteration = 0
        self._first_iteration = sys.maxsize  # in which a call may make what it needs, in each process
        self.namespace = Namespace(PREFIX, self, may_delete=True, are_paths=True)

    def begin(self) -> None:
        """Note what is set from now on: each process has set what came before."""
        self._set, self._noted = {}, {}
        _watch().watcher = weakref.ref(self)

    def begin_step(self, iteration: int) -> None:
        self._iteration = iteration
        self._first_iteration = min(self._first_iteration, iteration)

    def note(self, module: nn.Module, name: str) -> None:
        """User code is about to set it."""
        before = _values_of(module, name).get(name, _ABSENT)
        before = weakref.ref(before) if isinstance(before, torch.Tensor) else before
        reference, first, _ = self._noted.get((id(module), name), (None, before, 0))
        if reference is None or reference() is not module:
            reference, first = weakref.ref(module), before
        self._noted[id(module), name] = reference, first, self._iteration

    def require_carried(self) -> None:
        """Check, at the end of a step, what was set in an earlier one and stays. Raises TrainingFailed."""
        self._give_names()
        for name, each in self._set.items():
            if self._first_iteration < each.iteration < self._iteration and (what := _not_carried(each)):
                raise TrainingFailed(
                    f"train() gave {name} {what} in iteration {each.iteration}: workers that join and checkpoints "
                    "would not have it. Set it before the first step, and choose by a number or a text in an attribute "
                    "or a variable, which is carried; or keep it in an object with state_dict() that stateful() "
                    "returns (a script: pass it to elasticflow.elastic())"
                )

    def _give_names(self) -> None:
        """What cannot be reached by a name is not kept from step to step."""
        if not self._noted:
            return
        noted, self._noted = self._noted, {}
        known = {(id(each.of), each.name): each for each in self._set.values()}
        names: Mapping[int, str] | None = None
        for (of, name), (reference, before, iteration) in noted.items():
            module = reference()
            if module is None or name in _OF_MODULES or self._is_state(module, name):
                continue
            if (of, name) in known:
                known[of, name].iteration = iteration
                continue
            if names is None:
                names = {id(each): of_module for of_module, each in reversed(list(self._reachable()))}
            if of in names:
                self._set[f"{names[of]}.{name}"] = _Attribute(module, name, before, iteration)

    def _is_state(self, module: nn.Module, name: str) -> bool:
        """Otherwise; or its value is none, but what a module of the user's computes."""
        value = _values_of(module, name).get(name, _ABSENT)
        if value is _ABSENT:
            return True
        if _values_of(module, name) is not vars(module) and id(module) in self._of_model | self._known:
            return True
        is_read = id(module) in self._of_model and is_users_attribute(type(module), name)
        return is_read and not isinstance(value, _FUNCTIONS)

    # --- by name ---

    def __getitem__(self, name: str) -> Any:
        self._give_names()
        if (value := self._set[name].value) is _ABSENT:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self._give_names()
        if name not in self._set:
            path, _, attribute = name.rpartition(".")
            module = next((each for of_module, each in self._reachable() if of_module == path), None)
            if module is None:
                log.warning("attribute_not_restored", name=name)
                return
            self._set[name] = _Attribute(
                module, attribute, _values_of(module, attribute).get(attribute, _ABSENT), self._iteration
            )
        self._set[name].set(value)

    def __delitem__(self, name: str) -> None:
        """As before its first change."""
        self._set.pop(name).undo()

    def __iter__(self) -> Iterator[str]:
        self._give_names()
        return (name for name, each in list(self._set.items()) if each.value is not _ABSENT)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@runtime_checkable
class KnowsChanges(Protocol):
    """A script, whose plain state has them."""

    @property
    def changed_attributes(self) -> ChangedAttributes: ...


def _not_carried(each: _Attribute) -> str:
    """What its value is, if no other process could have it; "" if it can, or if it is as before. An object of a
    library, such as a logger, is not known to matter."""
    value = each.value
    if value is each.before or plain_of(value) is not NOT_PLAIN:
        return ""
    if isinstance(value, _FUNCTIONS):
        is_of_class = isinstance(value, MethodType) and value.__func__ is getattr(type(each.of), each.name, None)
        return "" if is_of_class else "another function"
    if isinstance(value, nn.Module):
        return f"another module ({type(value).__name__})"
    is_library_class = not is_users_class(type(each.of))  # others may keep a mask, or what they have computed
    is_new = isinstance(value, torch.Tensor) and not (isinstance(each.before, weakref.ref) and each.before() is value)
    return "another tensor" if is_new and is_library_class else ""


# --- what tells of it ----------------------------------------------------------------------------------


class _Watch:
    watcher: "weakref.ref[ChangedAttributes] | None" = None


@cache
def _watch() -> _Watch:
    """One for all jobs of a process, the newest of which is told."""
    watch, set_of_torch = _Watch(), nn.Module.__setattr__

    @wraps(set_of_torch)
    def set_attribute(self: nn.Module, name: str, value: Any) -> None:
        if watch.watcher is not None and (watcher := watch.watcher()) is not None and _is_by_user(sys._getframe(1)):
            watcher.note(self, name)
        set_of_torch(self, name, value)

    nn.Module.__setattr__ = set_attribute
    return watch


def _is_by_user(frame: FrameType | None) -> bool:
    """Whether user code sets an attribute of a module that is made already."""
    while frame is not None and frame.f_code.co_name == "__setattr__":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name != "__init__" and is_users_frame(frame)
