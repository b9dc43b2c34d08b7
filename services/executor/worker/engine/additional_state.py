"""The additional state of a job: objects beside the model and the optimizer, for example a schedule or an average.

train() changes them once in a step, as on one device, although a worker calls it once for each micro-batch: every call
begins with the same state, and that of the last one stays. The optimizer's settings, which schedules change, and the
plain state of the user's code follow the same rule. A rolled back step restores all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch
from torch import nn

from elasticflow.services.executor.worker.engine.changed_attributes import ChangedAttributes
from elasticflow.services.executor.worker.engine.local_shards import may_have_changed
from elasticflow.services.executor.worker.engine.plain_state import PlainState
from elasticflow.services.executor.worker.engine.plain_values import Plain, to_send
from elasticflow.services.executor.worker.group.nested_tensors import flatten, unflatten
from elasticflow.shared.training_interface import Stateful

OptimizerSettings = Sequence[dict[str, Any]]  # of each parameter group, by name


@dataclass(frozen=True, slots=True)
class AdditionalSnapshot:
    """settings: of the optimizer. structure: of the objects' states, by name. plain: of the user's code, by name."""

    settings: OptimizerSettings
    structure: Any
    tensors: "tuple[_KeptTensor, ...]"
    plain: Mapping[str, Plain]


class AdditionalState:
    """objects: by name. Calls of their methods in train() are calls of the user's own code. plain: what else that
    keeps. changed: attributes of modules, which are part of it."""

    def __init__(
        self,
        objects: Mapping[str, Stateful],
        optimizer: torch.optim.Optimizer,
        plain: PlainState | None = None,
        records: PlainState | None = None,
        changed: ChangedAttributes | None = None,
    ) -> None:
        self.objects = objects
        self.records = records or PlainState()  # read at the end of a step only
        self._plain = plain or PlainState()
        self.changed = changed
        self.note_first_plain()
        self._optimizer = optimizer
        self._kept: tuple[_KeptTensor, ...] = ()  # by the newest snapshot
        self._of_first_call: Mapping[str, Plain] | None = None  # since the newest snapshot
        self._differing, self._told = set[str](), set[str]()  # names in the plain state

    def note_first_plain(self) -> None:
        """Note the plain state with which the first step begins in any process."""
        if self.changed is not None:
            self.changed.begin()
        self._first_plain = {name: to_send(plain) for name, plain in self._plain.mark().items()}
        self._data = frozenset(self._plain.too_large)

    def outgrown(self) -> list[str]:
        """Names of containers that have become too large for a state, each once."""
        names = sorted(self._plain.too_large - self._data)
        self._data |= frozenset(names)
        return names

    def note_call(self) -> Mapping[str, Plain]:
        """Note the plain state that a call has left, or a part of it: each of them is for another part of the batch."""
        now = self._plain_before()
        first = self._of_first_call = now if self._of_first_call is None else self._of_first_call
        if now is not first and now != first:
            self.note_differing(first, now)
        return now

    def note_differing(self, one: Mapping[str, Plain], other: Mapping[str, Plain]) -> None:
        """Note names in the plain state whose value depends on the part of the batch."""
        self._differing.update(
            name
            for name in one.keys() | other.keys()
            if name not in one or name not in other or not _is_same(one[name], other[name])
        )

    def plain(self) -> Mapping[str, Plain]:
        """The plain state as it is now, by name."""
        return self._plain.read()

    def newly_differing(self) -> list[str]:
        """Their names, each once."""
        names = sorted(self._differing - self._told)
        self._told.update(names)
        return names

    def state(self) -> tuple[Any, list[torch.Tensor]]:
        """The structure of the objects' states, by name, and their tensors, which are not copied."""
        tensors: list[torch.Tensor] = []
        return flatten({name: each.state_dict() for name, each in self.objects.items()}, tensors), tensors

    def comparable(self) -> dict[str, str]:
        """The settings of the optimizer and the numbers of the objects, by name, in a form to compare.

        Modules are left out: their states are tensors, and those of a large average take milliseconds.
        """
        states = {
            name: flatten(each.state_dict(), [])
            for name, each in self.objects.items()
            if not isinstance(each, nn.Module)
        }
        return {
            name: repr(state)
            for name, state in {**states, "the optimizer": optimizer_settings(self._optimizer)}.items()
        }

    def snapshot(self) -> AdditionalSnapshot:
        """Copies only tensors that have changed since the last snapshot."""
        self._of_first_call = None
        structure, tensors = self.state()
        self._kept = tuple(
            kept if kept is not None and kept.is_current(tensor) else _KeptTensor.of(tensor)
            for tensor, kept in zip(tensors, chain(self._kept, repeat(None)), strict=False)
        )
        return AdditionalSnapshot(
            optimizer_settings(self._optimizer), structure, self._kept, self._plain_before(marks=True)
        )

    def restore(self, snapshot: AdditionalSnapshot, now: Mapping[str, Plain] | None = None) -> None:
        """now: the plain state, if it has been read."""
        restore_settings(self._optimizer, snapshot.settings)
        if (self._plain_before() if now is None else now) != snapshot.plain:
            self._plain.write(snapshot.plain, deletes=True)
        if self._is_at(snapshot):
            return
        # an object may adopt what it loads
        state = unflatten(snapshot.structure, [kept.copy.clone() for kept in snapshot.tensors])
        for name, each in self.objects.items():
            each.load_state_dict(state[name])

    def _plain_before(self, *, marks: bool = False) -> dict[str, Plain]:
        """Any part of a call."""
        if self._plain.restores_itself:
            return {}
        return self._plain.mark() if marks else self._plain.read()

    def changed_plain(self) -> dict[str, Plain]:
        """The plain state that differs from what this process began with, or from nothing: what others may lack."""
        now = self._plain.read()
        return {name: to_send(plain) for name, plain in now.items() if plain != self._first_plain.get(name, self)}

    def set_plain(self, plain: Mapping[str, Plain]) -> None:
        """Set the plain state that `changed_plain` of another process, or of an earlier step, returned."""
        self._plain.write({**self._first_plain, **plain}, deletes=True)

    def records_to_send(self) -> dict[str, Plain]:
        return {name: to_send(plain) for name, plain in self.records.read().items()}

    def _is_at(self, snapshot: AdditionalSnapshot) -> bool:
        structure, tensors = self.state()
        return structure == snapshot.structure and all(
            kept.is_current(tensor) for kept, tensor in zip(snapshot.tensors, tensors, strict=True)
        )


def _is_same(one: Plain, other: Plain) -> bool:
    """A NaN is the same as another: a script that has not measured anything yet says so in each part."""
    return one is other or one == other or (one != one and other != other)


@dataclass(frozen=True, slots=True)
class _KeptTensor:
    """original: kept, so that no other tensor gets its memory. version: torch's count of changes in place."""

    original: torch.Tensor
    version: int
    copy: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_KeptTensor":
        return cls(tensor, tensor._version, tensor.clone())

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has the values of the copy."""
        mine, other = (
            (each.data_ptr(), each.shape, each.stride(), each.dtype, each.device) for each in (self.original, tensor)
        )
        return mine == other and not may_have_changed(tensor, self.version)


def further_optimizers(additional: AdditionalState) -> dict[str, torch.optim.Optimizer]:
    """The optimizers among the objects, by the name of their step."""
    return {
        f"{name}.step()": each for name, each in additional.objects.items() if isinstance(each, torch.optim.Optimizer)
    }


def optimizer_settings(optimizer: torch.optim.Optimizer) -> OptimizerSettings:
    """A copy of the learning rates and the like, which train() may change before the optimizer's step."""
    return [
        {
            name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if name != "params"
        }
        for group in optimizer.param_groups
    ]


def restore_settings(optimizer: torch.optim.Optimizer, settings: OptimizerSettings) -> None:
    """A setting that is a tensor is overwritten in place: schedules change it there."""
    for group, before in zip(optimizer.param_groups, settings, strict=True):
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and isinstance(group[name], torch.Tensor):
                group[name].copy_(value)
            else:
                group[name] = value
