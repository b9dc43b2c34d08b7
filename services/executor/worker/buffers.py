"""What a forward pass changes in the model's buffers, such as the statistics of a BatchNorm, by virtual nodes.

The rule: every virtual node begins a step with the same buffers, and where it is cut into micro-batches, each of them.
Where the optimizer steps, and at the end, a buffer that some of them changed is the mean of what each has made of it,
weighted by samples; one that holds no floating-point numbers is what the first of virtual node 0 has made of it. One
that nobody changed stays as it is, to the bit.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from services.executor.worker.tree_reduce import TensorSum
from services.executor.worker.virtual_nodes import MicroBatch


class Buffers:
    """The buffers of one model, while several micro-batches take turns with it."""

    def __init__(self, model: nn.Module, carried: Sequence[MicroBatch]) -> None:
        found = {
            id(buffer): (module, name, buffer)
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        }
        self._places = [(module, name) for module, name, _ in found.values()]
        self._working = [buffer for _, _, buffer in found.values()]
        self._common = [buffer.detach().clone() for buffer in self._working]
        self._versions = [buffer._version for buffer in self._working]
        self._carried = carried
        self._own: list[dict[int, torch.Tensor]] = [{} for _ in carried]  # what each has changed in this step
        self._turn: int | None = None

    def begin_turn(self, index: int | None) -> None:
        """The model's buffers become those of one of the micro-batches carried. None: of nobody."""
        if self._turn is not None:
            self._keep(self._own[self._turn])
        if index != self._turn:
            before = self._own[self._turn] if self._turn is not None else {}
            after = self._own[index] if index is not None else {}
            self._write(before.keys() | after.keys(), after)
        self._turn = index

    def take_back(self) -> None:
        """All that was changed in this step."""
        self.begin_turn(None)
        touched = {i for own in self._own for i in own}
        self._own = [{} for _ in self._carried]
        self._write(touched, {})

    def changes(self) -> list[list[float]]:
        """For each micro-batch carried and each buffer: 1 if it has changed it, else 0."""
        return [[float(i in own) for i in range(len(self._working))] for own in self._own]

    def combine(self, changed: Sequence[int], summed: TensorSum) -> None:
        """All go on with the same. A collective, if there is anything to combine.

        changed: the buffers that some micro-batch anywhere has changed.
        """
        if changed:
            for micro_batch, own in zip(self._carried, self._own, strict=True):
                summed.push(micro_batch, [_share(own.get(i, self._common[i]), micro_batch) for i in changed])
            for i, value in zip(changed, summed.finish([self._common[i] for i in changed]), strict=True):
                assert value is not None
                self._common[i].copy_(value)
        self._own = [{} for _ in self._carried]
        self._write(changed, {})

    def _keep(self, own: dict[int, torch.Tensor]) -> None:
        for i, (module, name) in enumerate(self._places):
            current = module._buffers[name]
            assert current is not None
            if self._is_changed(i, module, current, own):
                own[i] = current.detach().clone()
                module._buffers[name] = self._working[i]

    def _is_changed(
        self, i: int, module: nn.Module, current: torch.Tensor, own: dict[int, torch.Tensor]
    ) -> bool:
        if i in own or current is not self._working[i] or current._version != self._versions[i]:
            return True
        # torch's kernels write the statistics of these layers without counting it
        return isinstance(module, _NormBase) and not torch.equal(current, self._common[i])

    def _write(self, indices: Iterable[int], own: dict[int, torch.Tensor]) -> None:
        for i in indices:
            self._working[i].copy_(own.get(i, self._common[i]))
            self._versions[i] = self._working[i]._version


def _share(value: torch.Tensor, micro_batch: MicroBatch) -> torch.Tensor:
    if value.is_floating_point() or value.is_complex():
        return value * micro_batch.weight
    is_first = micro_batch.virtual_node == micro_batch.index == 0
    return value.clone() if is_first else torch.zeros_like(value)
