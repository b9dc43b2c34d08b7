"""State that a job keeps beside its model, its optimizer and stateful(): modules and tensors that train() changes.

A module that is no part of the job's state, such as a teacher in an attribute, reaches neither workers that join nor
checkpoints, and changes once for each part of a batch. So do tensors that user code has made before the first step and
keeps in objects or, in a script, in variables: for example a dict with averages of the weights; and large arrays of
numpy. Such a job fails with a sentence. A tensor that train() makes is no state, and plain state is part of it
(`PlainState`).
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch documents how dispatch modes find what an operation writes, but exports it by other names)

import gc
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from types import FrameType, ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.changed_attributes import Reachable
from elasticflow.services.executor.worker.engine.gradient_digest import COMPARE_TENSORS_EVERY, sampled_bits
from elasticflow.services.executor.worker.engine.gradients_and_buffers import parameters_of
from elasticflow.services.executor.worker.engine.local_shards import local_of
from elasticflow.services.executor.worker.engine.plain_state import Namespace
from elasticflow.services.executor.worker.engine.plain_values import is_too_large
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.users_code import is_users_frame, items_of

# --- parameter changes ---------------------------------------------------------------------------------
# Changes of parameters by train() itself, outside of optimizer.step(): a momentum teacher, a clamp, a decay.
#
# A worker calls train() once for each part of the batch, so such a change would happen once for each part, and its
# result depend on the number of workers. Behind optimizer.step() all calls change the parameters in the same way: the
# changes of all calls but the last one are undone. Before it, the parts could differ, so the job fails with a
# sentence.
#
# torch counts changes in place, but not those through `parameter.data`: some steps compare samples of the values,
# too.


class ParameterChanges:
    """The watch over parameter changes of one job in one process. The calls of a step use it in turn."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._parameters: list[torch.Tensor] = []
        self._compares_values = True  # in the first step
        self._iteration = 0
        self._mark: Mark | None = None  # None: the running call may change parameters
        self._undo: _Undo | None = None  # of the running call
        self._watched: _Watched | None = None  # since the last optimizer.step()

    def begin_step(self, iteration: int) -> None:
        is_first = not self._parameters
        self._parameters = parameters_of(self._model, self._optimizer)
        self._iteration, self._watched = iteration, None
        self._compares_values = is_first or iteration % COMPARE_TENSORS_EVERY == 0

    def forbid(self) -> None:
        """Forbid changes when a call starts, or resumes before optimizer.step()."""
        self._undo, self._mark = None, Mark.of(self._parameters, self._iteration if self._compares_values else None)

    def note_step(self) -> None:
        """The optimizer has stepped."""
        self._watched = None

    @property
    def may_change(self) -> bool:
        """Whether the running call is behind optimizer.step()."""
        return self._mark is None

    def allow(self, *, undone: bool) -> None:
        """Allow changes behind optimizer.step(), in the thread of the call. undone: by `end_segment`."""
        self._mark = None
        if undone:
            self._watched = self._watched or _Watched.of(self._parameters, self._optimizer)
            self._undo = _Undo(self._watched)
            self._undo.begin()

    def end_watching(self) -> None:
        """End the watch in the thread of the call, before a backward pass of the same segment."""
        if self._undo is not None:
            self._undo.end()

    def end_segment(self) -> None:
        """End a segment in the thread of the call, before it pauses or ends. Raises TrainingFailed."""
        undo, mark, self._undo, self._mark = self._undo, self._mark, None, None
        if undo is not None:
            undo.end()
            undo.undo()
        elif mark is not None and (changed := mark.changed(self._parameters)) is not None:
            raise TrainingFailed(
                f"train() changed the parameter {self._name_of(changed)} before optimizer.step() "
                f"in iteration {self._iteration}. A worker calls train() once for each part of a batch, so the "
                "parameter would change once for each: let the optimizer change it, or change it behind "
                "optimizer.step(), in the same way for any part of the batch"
            )

    def require_unchanged_before_batch(self) -> None:
        """Check what a script has done between two steps, when it takes its next batch. Raises TrainingFailed."""
        if self._mark is not None and (changed := self._mark.changed(self._parameters)) is not None:
            raise TrainingFailed(
                f"the script changed the parameter {self._name_of(changed)} before the first batch of a loop, in "
                f"iteration {self._iteration}, for example by reset_parameters(). Each worker runs that code by "
                "itself, and one that joins later runs it again, so their weights would differ. Change it at the end "
                "of an epoch, behind the loop over its batches: all workers do so alike, and those that join get it"
            )

    def _name_of(self, parameter: torch.Tensor) -> str:
        names = {id(each): name for name, each in self._model.named_parameters()}
        return names.get(id(parameter), "of the optimizer")


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of parameters, as far as a later look compares it. values: samples of them, in some steps."""

    versions: list[int]
    addresses: list[int]
    iteration: int | None  # whose samples they are
    values: list[torch.Tensor]

    @classmethod
    def of(cls, parameters: Sequence[torch.Tensor], iteration: int | None) -> "Mark":
        return cls(
            [parameter._version for parameter in parameters],
            [local_of(parameter).data_ptr() for parameter in parameters],
            iteration,
            [] if iteration is None else [_bits(parameter, iteration) for parameter in parameters],
        )

    def changed(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The first one that is."""
        for parameter, version, address in zip(parameters, self.versions, self.addresses, strict=True):
            if parameter._version != version or local_of(parameter).data_ptr() != address:
                return parameter
        if self.iteration is None or not parameters:
            return None
        now = [_bits(parameter, self.iteration) for parameter in parameters]
        differ = torch.stack([one.ne(other).any().cpu() for one, other in zip(self.values, now, strict=True)])
        return parameters[int(differ.nonzero()[0])] if differ.any() else None


def _bits(parameter: torch.Tensor, iteration: int) -> torch.Tensor:
    return torch.cat(sampled_bits([local_of(parameter)], iteration))


@dataclass(frozen=True, slots=True)
class _Watched:
    """parameters: with their memory. by_storage: they and the optimizer's state."""

    parameters: list[tuple[torch.Tensor, torch.Tensor]]
    by_storage: dict[int, list[torch.Tensor]]

    @classmethod
    def of(cls, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> "_Watched":
        pairs = [(parameter, local_of(parameter).detach()) for parameter in parameters]
        states = [value for state in optimizer.state.values() for value in state.values()]
        by_storage: dict[int, list[torch.Tensor]] = {}
        for tensor in [
            *(memory for _, memory in pairs),
            *(local_of(each) for each in states if isinstance(each, torch.Tensor)),
        ]:
            by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        return cls(pairs, by_storage)


class _Undo:
    """Undoes the changes of one call: it copies what an operation is about to write, or keeps what is replaced."""

    def __init__(self, watched: _Watched) -> None:
        self._parameters = watched.parameters
        self._mode = _CopyOnWrite(dict(watched.by_storage))
        self._watched_thread: int | None = None

    def begin(self) -> None:
        self._mode.__enter__()
        self._watched_thread = threading.get_ident()

    def end(self) -> None:
        """End the watch. If this is another thread, that of the call has ended, and its modes with it."""
        if self._watched_thread == threading.get_ident():
            self._mode.__exit__(None, None, None)
        self._watched_thread = None

    def undo(self) -> None:
        with torch.no_grad():
            for tensor, before in self._mode.kept:
                tensor.copy_(before)
        for parameter, memory in self._parameters:
            if local_of(parameter).data_ptr() != memory.data_ptr():
                parameter.data = memory


class _CopyOnWrite(TorchDispatchMode):
    """kept: tensors that an operation has written, and their values before."""

    def __init__(self, by_storage: dict[int, list[torch.Tensor]]) -> None:
        super().__init__()
        self._by_storage = by_storage  # that none has written yet
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for position, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written = args[position] if position < len(args) else kwargs.get(argument.name)
                    self._keep([written] if isinstance(written, torch.Tensor) else written or [])
        return func(*args, **kwargs)

    def _keep(self, written: Sequence[torch.Tensor]) -> None:
        for tensor in written:
            for mine in self._by_storage.pop(local_of(tensor).untyped_storage()._cdata, []):
                self.kept.append((mine, mine.clone()))


# --- undeclared state ----------------------------------------------------------------------------------

_SEARCHES = 2  # in the first steps: train() may make a module in its first call
_MOST_ITEMS = 100_000  # of containers and objects in attributes: the others are data
_OF_MODEL = "model."  # names of attributes of modules
_DEPTH = 4  # of containers and objects in them
_NO_STATE = (nn.Module, torch.optim.Optimizer, LRScheduler, DataLoader, Dataset, type, ModuleType)  # or found otherwise

Named = tuple[str, torch.Tensor]
HeldObjects = Callable[[], Iterable[Namespace]]
"""Modules of the model and objects of a library, with the attributes that user code gives them."""


@runtime_checkable
class RunsScript(Protocol):
    """A script's tensors count if they have the shape of a parameter, as averages have.

    watched: a block around each pass of its loop, in its thread. is_last_part: whether the last pass of a step, in this
    process, has ended last.
    """

    watched: Callable[[], AbstractContextManager[None]]
    is_last_part: bool

    def script_frames(self) -> Iterable[FrameType]:
        """The functions in which it is now."""
        ...

    def loop_exits(self) -> Sequence[str]:
        """Where its code leaves its loop within an epoch; told once."""
        ...


class UndeclaredState:
    """Tensors in this process that are no state of its job. job: the object of the user's class, or a script."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        additional: AdditionalState,
        job: object,
        held: HeldObjects = tuple,
    ) -> None:
        self._model, self._optimizer, self._additional, self._job = model, optimizer, additional, job
        self._held = held
        self._searches_left = _SEARCHES
        self._found: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        self._there: list[tuple[str, torch.Tensor]] = []
        self._mark: Mark | None = None
        self._in_attributes: dict[str, torch.Tensor] = {}  # when the step began, in steps that compare values
        self._first_names: frozenset[str] | None = None  # of these, before the first step
        self._of_arrays: dict[str, tuple[np.ndarray[Any, Any], torch.Tensor]] = {}  # by name: one on its memory

    def begin_step(self, iteration: int) -> None:
        """Marks their tensors as they are."""
        compares_values = self._searches_left > 0 or iteration % COMPARE_TENSORS_EVERY == 0
        self._in_attributes = dict(self._attributes()) if compares_values else {}
        if self._searches_left:
            self._searches_left -= 1
            found = (*self._search(), *self._in_attributes.items())
            self._found = [(name, weakref.ref(tensor)) for name, tensor in found]
        if self._first_names is None:
            self._first_names = frozenset(self._in_attributes)
        self._there = [(name, tensor) for name, reference in self._found if (tensor := reference()) is not None]
        self._mark = Mark.of([tensor for _, tensor in self._there], iteration if compares_values else None)

    def require_unchanged(self, iteration: int) -> None:
        """Check the tensors at the end of the step. Raises TrainingFailed."""
        there, mark, self._there, self._mark = self._there, self._mark, [], None
        changed = mark.changed([tensor for _, tensor in there]) if mark is not None else None
        names = [name for name, tensor in there if tensor is changed] or self._replaced()
        self._in_attributes = {}
        if names:
            raise TrainingFailed(
                f"train() changed {names[0]} in iteration {iteration}, which is no state of the job: workers that join "
                "and checkpoints would not have it, and it changes once for each part of a batch. Make it a part of "
                "the model that init_model() returns, or return it from stateful() (a script: pass it to "
                "elasticflow.elastic() behind the optimizer, or to elastic_trainer() behind the trainer; a library's "
                "callback: give it state_dict() and load_state_dict())"
            )

    def _replaced(self) -> list[str]:
        """Names of attributes that have another tensor than before the step, with other values."""
        if not self._in_attributes:
            return []
        now = dict(self._attributes())
        return [
            name
            for name, tensor in self._in_attributes.items()
            if (other := now.get(name)) is not None
            and other is not tensor
            and not _same(tensor, other)
            and not name.startswith(_OF_MODEL)  # a module may keep a mask, or what it computed from the last batch
        ]

    def _search(self) -> Iterator[Named]:
        """Find tensors, named by what users know: the class of the outermost module, and the name in it."""
        modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
        inner = {id(child) for module in modules for child in module._modules.values()}
        declared = self.declared_storages()
        for module in modules:
            if id(module) not in inner:
                for name, tensor in _tensors_of(module):
                    if not nn.parameter.is_lazy(tensor) and tensor.untyped_storage()._cdata not in declared:
                        yield f"{name} of a {type(module).__name__}", tensor

    def _attributes(self) -> list[Named]:
        """Tensors that were there before the first step, or are now if it is the first one."""
        is_script = isinstance(self._job, RunsScript)
        shapes = {each.shape for each in parameters_of(self._model, self._optimizer)} if is_script else None
        declared, known = self.declared_storages(), {id(each) for each in self._additional.objects.values()}
        return [
            (name, item)
            for name, item in self._as_tensors(items_of_user(self._job, _MOST_ITEMS, known, self._held))
            if (item.numel() > 1 and item.layout is torch.strided)
            and (self._first_names is None or name in self._first_names)
            and (shapes is None or item.shape in shapes or name.startswith(_OF_MODEL))
            and item.untyped_storage()._cdata not in declared
        ]

    def _as_tensors(self, items: Iterable[tuple[str, Any]]) -> Iterator[Named]:
        """The tensors among them, and arrays that are too large to be plain, each the same tensor in all steps."""
        for name, item in items:
            if is_tensor(item):
                yield name, item
            elif isinstance(item, np.ndarray) and is_too_large(item) and item.flags.writeable:
                array, tensor = self._of_arrays.get(name, (None, None))
                if array is not item:
                    try:
                        tensor = torch.from_numpy(item)  # it shares the memory
                    except (TypeError, ValueError):  # torch has no such type, or no such strides
                        continue
                    self._of_arrays[name] = item, tensor
                if tensor is not None:
                    yield name, tensor

    def declared_storages(self) -> set[int]:
        """The memory of all tensors that are state."""
        return {tensor.untyped_storage()._cdata for tensor in self._declared()}

    def _declared(self) -> Iterator[torch.Tensor]:
        parameters = parameters_of(self._model, self._optimizer)
        yield from parameters
        yield from (parameter.grad for parameter in parameters if parameter.grad is not None)
        yield from self._model.buffers()
        for each in self._additional.objects.values():
            if isinstance(each, nn.Module):
                yield from (tensor for _, tensor in _tensors_of(each))
        yield from self._additional.state()[1]


def items_of_user(
    job: object, most: int, known: Set[int] = frozenset(), held: HeldObjects = tuple
) -> Iterator[tuple[str, Any]]:
    """Attributes of the job and of held objects, or variables of a script, and what these hold, by name. most: items.
    known: ids of objects that are not looked into."""
    if isinstance(job, RunsScript):
        roots = _variables_of(job.script_frames())
    else:
        roots = {f"self.{name}": value for name, value in vars(job).items()}
    roots |= {
        space.prefix + name: value
        for space in held()
        if space.of not in known
        for name, value in space.values.items()
        if name not in space.without and space.only is None
    }
    items = (each for name, value in roots.items() for each in _walk(name, value, _DEPTH, most, known))
    return islice(items, most)


def reachable_modules(model: nn.Module, job: object, known: Set[int], held: HeldObjects = tuple) -> Reachable:
    """Those of the model first; then those in attributes of the job, or in variables of a script. known, held: as of
    `items_of_user`."""

    def reachable() -> Iterator[tuple[str, nn.Module]]:
        yield from _named("model", model)
        for name, value in items_of_user(job, _MOST_ITEMS, known, held):
            if isinstance(value, nn.Module):
                yield from _named(name, value)

    return reachable


def _named(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((f"{name}.{path}" if path else name, each) for path, each in module.named_modules())


def _variables_of(frames: Iterable[FrameType]) -> dict[str, Any]:
    """The variables of the user's code among these frames, by name: those of inner functions hide others."""
    found: dict[str, Any] = {}
    for frame in reversed(list(filter(is_users_frame, frames))):
        found |= frame.f_globals | frame.f_locals
    return found


def _tensors_of(module: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _walk(name: str, value: Any, depth: int, most: int, known: Set[int]) -> Iterator[tuple[str, Any]]:
    """It, and what is in containers and in objects of the user's classes. most, known: as in `items_of_user`."""
    yield name, value
    if depth > 0 and not is_tensor(value) and id(value) not in known and not isinstance(value, _NO_STATE):
        for of_item, item in items_of(value, most):
            yield from _walk(name + of_item, item, depth - 1, most, known)


def is_tensor(value: Any) -> bool:
    return issubclass(type(value), torch.Tensor)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return alike and not one.detach().ne(other.detach()).any()
