"""Which statistics of normalization layers a step has changed: torch's kernels write them without counting a version.

Before the optimizer's step the device finds it, and takes the result with the sum of the statistics. So no host waits.
"""

# pyright: reportPrivateImportUsage=false
# (torch uses its operations on lists everywhere, but does not export them by the letter)

import math
from collections.abc import Collection, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase  # pyright: ignore[reportPrivateUsage]

_COUNTER = "num_batches_tracked"
_COUNTING = (_BatchNorm.forward, nn.SyncBatchNorm.forward)

Changed = dict[int, torch.Tensor]  # buffers that a micro-batch has, or may have, changed


class LayerStatistics:
    """Those among a model's buffers. owners: layer and name of each. common: values at the beginning of a step."""

    def __init__(self, owners: Sequence[tuple[nn.Module, str]], common: Sequence[torch.Tensor]) -> None:
        self._common = common
        positions = {(module, name): i for i, (module, name) in enumerate(owners)}
        self._counters = {  # of a layer's passes in training, by statistic; None: the layer counts none
            i: positions.get((module, _COUNTER)) if type(module).forward in _COUNTING else None
            for i, (module, _) in enumerate(owners)
            if isinstance(module, _NormBase) and common[i].is_floating_point() and common[i].numel()
        }
        self._flags: dict[tuple[int, ...], torch.Tensor] = {}  # by statistics
        self._sizes: dict[tuple[int, ...], torch.Tensor] = {}  # elements of each

    def suspected(self, written: Collection[int], *, after_optimizer: bool) -> set[int]:
        """Those that may differ, given which buffers were written. After the optimizer's step a comparison would keep
        the device waiting for the next one, so a layer's count of its passes tells."""
        return {
            i for i, counter in self._counters.items() if not after_optimizer or counter is None or counter in written
        }

    def drop_unchanged(self, changed: Sequence[Changed]) -> None:
        """One comparison of all statistics of all micro-batches, and one wait: each would stop a GPU."""
        kept = [(of_one, i) for of_one in changed for i in self._counters if i in of_one]
        if not kept:
            return
        differ = _differ([of_one[i] for of_one, i in kept], [self._common[i] for _, i in kept])
        for (of_one, i), does_differ in zip(kept, differ.tolist(), strict=True):
            if not does_differ:
                del of_one[i]

    def flags_like(self, indices: Sequence[int]) -> list[torch.Tensor]:
        """A tensor of the shape of `flags`, the same one for the same indices; none without statistics."""
        if not (mine := self._among(indices)):
            return []
        if mine not in self._flags:
            device = self._common[mine[0]].device
            self._flags[mine] = torch.zeros(len(mine), device=device)
            self._sizes[mine] = torch.tensor([self._common[i].numel() for i in mine], device=device)
        return [self._flags[mine]]

    def flags(self, indices: Sequence[int], changed: Sequence[Changed]) -> list[list[torch.Tensor]]:
        """For each micro-batch: whether it has changed each of the statistics among these buffers, as 1 or 0."""
        if not (mine := self._among(indices)):
            return [[] for _ in changed]
        values = [of_one.get(i, self._common[i]) for of_one in changed for i in mine]
        differ = _differ(values, [self._common[i] for _ in changed for i in mine])
        return [[row] for row in differ.float().view(len(changed), len(mine))]

    def with_unchanged(
        self, indices: Sequence[int], values: Sequence[torch.Tensor], flags: torch.Tensor
    ) -> list[torch.Tensor]:
        """The new values, but the old ones of statistics that no micro-batch has changed: means may have other bits.

        flags: the sums over all micro-batches.
        """
        mine, chosen = self._among(indices), dict(zip(indices, values, strict=True))
        old = torch.cat([self._common[i].reshape(-1) for i in mine])
        new = torch.cat([chosen[i].reshape(-1) for i in mine])
        is_changed = flags.gt(0.0).repeat_interleave(self._sizes[mine], output_size=len(new))
        parts = torch.where(is_changed, new, old).split([self._common[i].numel() for i in mine])
        return list((chosen | {i: part.view_as(self._common[i]) for i, part in zip(mine, parts, strict=True)}).values())

    def _among(self, indices: Sequence[int]) -> tuple[int, ...]:
        return tuple(i for i in indices if i in self._counters)


def _differ(values: list[torch.Tensor], others: list[torch.Tensor]) -> torch.Tensor:
    """For each pair; on the device."""
    return torch.stack(torch._foreach_norm(torch._foreach_sub(values, others), ord=math.inf)).ne(0.0)
