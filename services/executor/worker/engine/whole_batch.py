"""Values of the whole global batch within train(): `elasticflow.mean` and `elasticflow.gather`.

A call of train() has one part of the batch. It gives its value and pauses; once all calls have given theirs, the
workers exchange them in the order of virtual nodes, and all calls continue with the same bits.

A gathered tensor depends on all parts, so its gradient is the sum of what all calls add to it. A backward pass
therefore has two halves: each call's loss is derived with respect to what it gathered; these gradients are summed over
all calls along the summation tree; then each call continues with the rows of its own part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.tree_reduce import TensorSum
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import SequentialScheduler, VirtualNodeScheduler
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.state_transfer import bytes_of
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.device import number_of

_MEAN, _GATHER, _GRADIENTS = "elasticflow.mean()", "elasticflow.gather()", "backward() behind elasticflow.gather()"
_MOST_DIMENSIONS = 8


@dataclass(slots=True)
class _Gathered:
    """A tensor gathered by one call. whole: what train() received, a leaf of its own graph."""

    part: torch.Tensor
    whole: torch.Tensor
    rows: slice  # of this part


@dataclass
class WholeBatchValues:
    """Values of the whole batch for the calls of one worker. members: None if not all parts of the batch are computed,
    as in a dry step."""

    scheduler: VirtualNodeScheduler
    members: GenerationMembers | None
    computed: Sequence[MicroBatch]
    pause: Callable[[str], None]  # the running call, until all calls have reached this point
    refusal: str = ""  # why there are no such values here
    _given: dict[int, Any] = field(default_factory=dict[int, Any])  # by call, for the present point
    _mean: float = 0.0
    _whole: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    _rows: Sequence[slice] = ()  # of `_whole`, by call
    _sums: Sequence[torch.Tensor | None] = ()  # gradients of what was gathered, in its order
    _gathered: dict[int, list[_Gathered]] = field(default_factory=dict[int, list[_Gathered]])  # by call, in this step

    def forget(self) -> None:
        """Forget all values, at a step boundary."""
        self._given, self._gathered, self._sums, self._whole = {}, {}, (), torch.empty(0)

    # --- within a call ---

    def mean(self, value: torch.Tensor | float) -> float:
        self._synchronize(_MEAN, float(number_of(value)))
        return self._mean

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if not 1 <= tensor.dim() <= _MOST_DIMENSIONS:
            raise TrainingFailed(
                f"elasticflow.gather() got a tensor of {tensor.dim()} dimensions: give it one of 1 to "
                f"{_MOST_DIMENSIONS}, whose first one counts the samples of this part"
            )
        index = self._synchronize(_GATHER, tensor)
        whole = self._whole.detach().clone()  # each call may change its own
        if torch.is_grad_enabled() and tensor.requires_grad:
            whole.requires_grad_()
            self._gathered.setdefault(index, []).append(_Gathered(tensor, whole, self._rows[index]))
        return whole

    def roots_behind(
        self, index: int, roots: Any, weights: Any, parameters: Sequence[torch.Tensor], *, creates_graph: bool
    ) -> tuple[Any, Any]:
        """Roots of a backward pass, and their gradients, in place of those that derive from what this call gathered."""
        if not (gathered := self._gathered.get(index)):
            return roots, weights
        if creates_graph:
            raise TrainingFailed(
                "backward(create_graph=True) behind elasticflow.gather() is not supported: gather behind it, or "
                "compute a gradient penalty on each part alone"
            )
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        inputs = [*(each.whole for each in gathered), *parameters]
        found = torch.autograd.grad(roots, inputs, weights, retain_graph=True, allow_unused=True)
        of_whole, of_parameters = found[: len(gathered)], found[len(gathered) :]
        self._synchronize(_GRADIENTS, list(of_whole))
        sums = zip(gathered, self._sums, strict=True)
        behind = [(each.part, total[each.rows]) for each, total in sums if total is not None]
        behind += [(p, gradient) for p, gradient in zip(parameters, of_parameters, strict=True) if gradient is not None]
        return [root for root, _ in behind], [gradient for _, gradient in behind]

    def check_not_nested(self, index: int) -> None:
        """Check, after the second half of a backward pass, that it has not reached anything gathered before."""
        if any(each.whole.grad is not None for each in self._gathered.get(index, ())):
            raise TrainingFailed(
                "train() gathered a tensor that depends on another gathered one, through which no gradient comes back: "
                "gather once, as late as possible, or detach() the first one"
            )

    def _synchronize(self, point: str, value: Any) -> int:
        index = self.scheduler.running
        assert index is not None, "only calls of train() find this object"
        if self.refusal:
            raise TrainingFailed(f"{point} {self.refusal}")
        if isinstance(self.scheduler, SequentialScheduler):
            raise TrainingFailed(
                f"{point} needs all parts of a batch at once, which the loop of a script computes one after another: "
                "write a class, or use a value that all parts share, such as one of the whole validation set"
            )
        self._given[index] = value
        self.pause(point)
        return index

    # --- between the calls ---

    def at_point(self, point: str) -> bool:
        """Whether this is one of its own points, at which all calls have paused."""
        if point not in (_MEAN, _GATHER, _GRADIENTS):
            return False
        given = [self._given[index] for index in range(len(self.computed))]
        self._given = {}
        if point == _MEAN:
            self._mean = self._mean_of(given)
        elif point == _GATHER:
            self._exchange([each.detach() for each in given])
        else:
            self._sums = self._summed(given)
        return True

    def _mean_of(self, values: Sequence[float]) -> float:
        if self.members is None:
            return sum(values) / len(values)
        return self.members.means([[value] for value in values])[0]

    def _exchange(self, parts: Sequence[torch.Tensor]) -> None:
        """Every worker gets the rows of all parts, in the order of virtual nodes."""
        group, order = self._group, self._order
        here = {_key(of): part for of, part in zip(self.computed, parts, strict=True)}
        counted = {key: len(part) for key, part in here.items() if self._counts_here(key[0])}
        numbers = torch.tensor([*_shape(parts[0]), *(counted.get(_key(each), 0) for each in order)])
        everywhere = [numbers] if group is None else group.all_gather(numbers)
        if any(not theirs[:_MOST_DIMENSIONS].equal(numbers[:_MOST_DIMENSIONS]) for theirs in everywhere):
            raise TrainingFailed(
                "elasticflow.gather() got tensors of different shapes from parts of one batch: only the first "
                "dimension may depend on the part"
            )
        counts = torch.stack(everywhere)[:, _MOST_DIMENSIONS:]
        own = [part for key, part in here.items() if key in counted]
        blocks = [parts[0].new_empty((number, *parts[0].shape[1:])) for number in counts.sum(1).tolist()]
        if own:
            torch.cat(own, out=blocks[group.rank if group else 0])
        for rank, block in enumerate(blocks):
            if group is not None and block.numel():
                group.broadcast_all([bytes_of(block)], source=rank)
        if group is not None:
            group.check_received()
        self._whole = torch.cat(blocks)
        stops = dict(zip(map(_key, order), counts.sum(0).cumsum(0).tolist(), strict=True))
        self._rows = [slice(stops[key] - len(part), stops[key]) for key, part in here.items()]

    def _summed(self, given: Sequence[Sequence[torch.Tensor | None]]) -> Sequence[torch.Tensor | None]:
        """The gradients of what was gathered, in its order, over all calls."""
        like = [each.whole for each in self._gathered[0]]
        if self.members is None:  # a dry step: any values do
            return given[0]
        total = TensorSum(self.members.virtual_nodes, self.members.group)
        rows = ([None if each is None else each.clone() for each in gradients] for gradients in given)
        sums = total.of(self.computed, rows, like)
        total.check_received()
        return sums

    @property
    def _group(self) -> Group | None:
        return None if self.members is None else self.members.group

    @property
    def _order(self) -> Sequence[MicroBatch]:
        """All parts of the batch."""
        if self.members is None:
            return self.computed
        cut = self.members.virtual_nodes
        return [each for virtual_node in range(cut.count) for each in cut.micro_batches(virtual_node)]

    def _counts_here(self, virtual_node: int) -> bool:
        """Whether its part is this worker's: a surplus worker repeats one that counts elsewhere."""
        return self.members is None or virtual_node in self.members.block


def _key(micro_batch: MicroBatch) -> tuple[int, int]:
    return micro_batch.virtual_node, micro_batch.index


def _shape(tensor: torch.Tensor) -> list[int]:
    """The shape but for its first dimension, with a fixed length."""
    return [tensor.dim(), *tensor.shape[1:], *[0] * (_MOST_DIMENSIONS - tensor.dim())]
