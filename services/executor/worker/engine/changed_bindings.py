"""Variables and attributes that user code binds to another module or function while it trains.

`crit = nn.CrossEntropyLoss(label_smoothing=0.2)` in epoch 3: a worker that joins makes what was there before the loop.
What is bound anew in each step, or at the beginning of each epoch, is bound in each process. The bytecode says which
variables a script may still read before it binds them anew, where it waits for a batch; the attributes of an object are
as they are.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeAlias

from torch import nn

from elasticflow.services.executor.worker.engine.kept_tensors import may_be_read
from elasticflow.services.executor.worker.engine.model_structure import are_alike, has_tensors
from elasticflow.services.executor.worker.engine.plain_values import NOT_PLAIN, plain_of
from elasticflow.services.executor.worker.engine.undeclared_state import RunsScript
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.users_code import is_users_frame, is_users_module

_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, partial)
_BOUND = (nn.Module, *_FUNCTIONS)

Bindings: TypeAlias = Mapping[str, Any]
Position: TypeAlias = tuple[tuple[CodeType, int], ...]
"""Where a script waits for its next batch; () for a class."""


class _Rebound(NamedTuple):
    name: str
    before: Any
    value: Any


class ChangedBindings:
    """job: the object of the user's class, or a script."""

    def __init__(self, job: object) -> None:
        self._job = job
        self._first_iteration: int | None = None
        self._first_position: Position = ()
        self._last_position: Position = ()
        self._variables: dict[Position, Bindings] = {}  # of a script, where it waits
        self._first: Bindings = {}  # attributes before the first step
        self._last: Bindings = {}  # and after the last one
        self._changed_in: dict[str, int] = {}  # iterations
        self._told = set[str]()

    def begin_step(self, iteration: int) -> None:
        if self._first_iteration is None:
            self._first_iteration = iteration
            self._first_position = self._last_position = self._position()
            self._variables = {self._first_position: self._variables_now()}
            self._first = self._last = self._attributes_now()

    def step_ended(self, iteration: int) -> list[str]:
        """Names of what holds tensors, and so is perhaps only kept for later, each once. Raises TrainingFailed if a
        module without tensors, or a function, is another one."""
        found = [*self._variables_rebound(), *self._attributes_rebound(iteration)]
        for name, before, value in found:
            if isinstance(before, _BOUND) and not _has_tensors(value):
                raise TrainingFailed(
                    f"train() bound {name} to {_in_words(value)} until iteration {iteration}: workers that join "
                    "and checkpoints would have the one from before the loop. Change a number or a text of the one "
                    f"that is there, such as {name}.label_smoothing = 0.2 of a loss; or make both before the loop, and "
                    "choose by a number in a variable or an attribute, which is carried"
                )
        names = [name for name, _, value in found if _has_tensors(value) and name not in self._told]
        self._told.update(names)
        return names

    def _variables_rebound(self) -> Iterator[_Rebound]:
        position, now = self._position(), self._variables_now()
        # a loop over batches begins anew in each epoch, behind what the script does before it
        if position not in self._variables or position not in (self._first_position, self._last_position):
            self._variables[position] = now
        before, self._last_position = self._variables[position], position
        for name, value in now.items():
            if name in before and not _is_alike(before[name], value) and self._may_be_read(name):
                yield _Rebound(name, before[name], value)

    def _attributes_rebound(self, iteration: int) -> Iterator[_Rebound]:
        """Those that were bound in an earlier step, but not by the first one."""
        now, last = self._attributes_now(), self._last
        self._last = now
        began = self._first_iteration or 0
        for name, value in now.items():
            if not _is_alike(last.get(name), value):
                self._changed_in[name] = iteration
                continue
            has_stayed = began < self._changed_in.get(name, 0) < iteration
            if has_stayed and name in self._first and not _is_alike(self._first[name], value):
                yield _Rebound(name, self._first[name], value)

    # --- as it is now ---

    def _frames(self) -> Iterable[FrameType]:
        return filter(is_users_frame, self._job.script_frames()) if isinstance(self._job, RunsScript) else ()

    def _position(self) -> Position:
        return tuple((each.f_code, each.f_lasti) for each in self._frames())

    def _variables_now(self) -> Bindings:
        found: dict[str, Any] = {}
        for frame in reversed(list(self._frames())):
            found |= {**frame.f_globals, **frame.f_locals}
        return {name: value for name, value in found.items() if _counts(value)}

    def _attributes_now(self) -> Bindings:
        if not isinstance(self._job, RunsScript):
            holders = {"self": self._job}
        else:
            holders = {}
            for frame in reversed(list(self._frames())):
                holders |= {name: value for name, value in frame.f_locals.items() if _is_users_object(value)}
        return {
            f"{of}.{name}": value
            for of, holder in holders.items()
            for name, value in getattr(holder, "__dict__", {}).items()
            if _counts(value)
        }

    def _may_be_read(self, name: str) -> bool:
        frames = [each for each in self._frames() if name in each.f_locals]
        return not frames or any(may_be_read(each, name) for each in frames)


def _counts(value: Any) -> bool:
    return value is None or isinstance(value, _BOUND)


def _is_users_object(value: Any) -> bool:
    kind = type(value)
    return not isinstance(value, (*_BOUND, type, ModuleType)) and is_users_module(kind.__module__)


def _is_alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, nn.Module) and isinstance(other, nn.Module):
        return are_alike(one, other)
    match one, other:
        case FunctionType(), FunctionType():  # a function in a function is made anew
            return one.__code__ is other.__code__ and _same_cells(one, other)
        case partial(), partial():
            mine, others = (plain_of((each.args, each.keywords)) for each in (one, other))
            return _is_alike(one.func, other.func) and mine is not NOT_PLAIN and bool(mine == others)
        case _:
            return isinstance(other, _FUNCTIONS) and bool(one == other)


def _same_cells(one: FunctionType, other: FunctionType) -> bool:
    """Whether their variables from around them are the same, as far as they are plain."""
    mine, others = ([_content(each) for each in function.__closure__ or ()] for function in (one, other))
    return bool(mine == others)


def _content(cell: Any) -> Any:
    try:
        plain = plain_of(cell.cell_contents)
    except ValueError:  # it is not set yet
        return None
    return None if plain is NOT_PLAIN else plain


def _has_tensors(value: Any) -> bool:
    return isinstance(value, nn.Module) and has_tensors(value)


def _in_words(value: Any) -> str:
    if value is None:
        return "None"
    return f"another {type(value).__name__ if isinstance(value, nn.Module) else 'function'}"
