"""Changes of parameters by train() itself, outside of optimizer.step(): a momentum teacher, a clamp, a decay.

A worker calls train() once for each part of the batch, so such a change would happen once for each part, and its result
depend on the number of workers. Behind optimizer.step() all calls change the parameters in the same way: the changes of
all calls but the last one are undone. Before it, the parts could differ, so the job fails with a sentence.

torch counts changes in place, but not those through `parameter.data`: some steps compare samples of the values, too.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch documents how dispatch modes find what an operation writes, but exports it by other names)

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elasticflow.services.executor.worker.steps.carried_gradients import parameters_of
from elasticflow.services.executor.worker.steps.gradient_digest import COMPARE_TENSORS_EVERY, sampled_bits
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed


class ParameterChanges:
    """Of one job in one process. The calls of a step use it in turn."""

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
        """When a call starts, or resumes before optimizer.step()."""
        self._undo, self._mark = None, Mark.of(self._parameters, self._iteration if self._compares_values else None)

    def note_step(self) -> None:
        """The optimizer has stepped."""
        self._watched = None

    @property
    def may_change(self) -> bool:
        """Whether the running call is behind optimizer.step()."""
        return self._mark is None

    def allow(self, *, undone: bool) -> None:
        """Behind optimizer.step(), in the thread of the call. undone: by `end_segment`."""
        self._mark = None
        if undone:
            self._watched = self._watched or _Watched.of(self._parameters, self._optimizer)
            self._undo = _Undo(self._watched)
            self._undo.begin()

    def end_watching(self) -> None:
        """In the thread of the call, before a backward pass of the same segment."""
        if self._undo is not None:
            self._undo.end()

    def end_segment(self) -> None:
        """In the thread of the call, before it pauses or ends. Raises TrainingFailed."""
        undo, mark, self._undo, self._mark = self._undo, self._mark, None, None
        if undo is not None:
            undo.end()
            undo.undo()
        elif mark is not None and (changed := mark.changed(self._parameters)) is not None:
            names = {id(each): name for name, each in self._model.named_parameters()}
            raise TrainingFailed(
                f"train() changed the parameter {names.get(id(changed), 'of the optimizer')} before optimizer.step() "
                f"in iteration {self._iteration}. A worker calls train() once for each part of a batch, so the "
                "parameter would change once for each: let the optimizer change it, or change it behind "
                "optimizer.step(), in the same way for any part of the batch"
            )


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
            [parameter.data_ptr() for parameter in parameters],
            iteration,
            [] if iteration is None else [_bits(parameter, iteration) for parameter in parameters],
        )

    def changed(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The first one that is."""
        for parameter, version, address in zip(parameters, self.versions, self.addresses, strict=True):
            if parameter._version != version or parameter.data_ptr() != address:
                return parameter
        if self.iteration is None or not parameters:
            return None
        now = [_bits(parameter, self.iteration) for parameter in parameters]
        differ = torch.stack([one.ne(other).any().cpu() for one, other in zip(self.values, now, strict=True)])
        return parameters[int(differ.nonzero()[0])] if differ.any() else None


def _bits(parameter: torch.Tensor, iteration: int) -> torch.Tensor:
    return torch.cat(sampled_bits([parameter], iteration))


@dataclass(frozen=True, slots=True)
class _Watched:
    """parameters: with their memory. by_storage: they and the optimizer's state."""

    parameters: list[tuple[torch.Tensor, torch.Tensor]]
    by_storage: dict[int, list[torch.Tensor]]

    @classmethod
    def of(cls, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> "_Watched":
        pairs = [(parameter, parameter.detach()) for parameter in parameters]
        states = [value for state in optimizer.state.values() for value in state.values()]
        by_storage: dict[int, list[torch.Tensor]] = {}
        for tensor in [*(memory for _, memory in pairs), *(each for each in states if isinstance(each, torch.Tensor))]:
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
        """In another thread, that of the call has ended, and its modes with it."""
        if self._watched_thread == threading.get_ident():
            self._mode.__exit__(None, None, None)
        self._watched_thread = None

    def undo(self) -> None:
        with torch.no_grad():
            for tensor, before in self._mode.kept:
                tensor.copy_(before)
        for parameter, memory in self._parameters:
            if parameter.data_ptr() != memory.data_ptr():
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
            for mine in self._by_storage.pop(tensor.untyped_storage()._cdata, []):
                self.kept.append((mine, mine.clone()))
