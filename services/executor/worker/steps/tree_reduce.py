"""Sums tensors along the summation tree: partial sums in each worker, the rest between workers.

The communication library moves bytes and adds nothing, so the bits depend neither on it nor on the number of workers.
The traffic equals that of a ring if blocks are aligned, and is at most 2 log2 V times as much otherwise.
"""
# pyright: reportPrivateImportUsage=false
# (torch uses its sums of lists everywhere, but does not export them by the letter)

from collections.abc import Sequence

import torch

from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.steps.shared_sum import SharedSum, Tensors
from elasticflow.services.executor.worker.steps.summation_tree import Node, TreeSum, subtrees
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch, VirtualNodes


class TensorSum:
    """Sums lists of equally shaped tensors over all virtual nodes. group: None for a worker that is alone."""

    def __init__(self, virtual_nodes: VirtualNodes, group: Group | None) -> None:
        rank, world_size = (group.rank, group.size) if group else (0, 1)
        blocks = [virtual_nodes.block(r, world_size) for r in range(world_size)]
        self._block = blocks[rank]
        self._group = group
        self._folded = TreeSum[Tensors](_add)
        self._unfinished: Tensors | None = None  # sum over the present virtual node's micro-batches so far
        self._is_pair = False  # the next push is the sum of two virtual nodes
        self._shared = None if group is None else SharedSum(group, [subtrees(block) for block in blocks])
        self._last: Tensors | None = None  # those of this worker's last pass, which the shared sum takes

    def take_partial_sum(self, micro_batch: MicroBatch) -> Tensors | None:
        """Tensors to which a pass may add its own in place, before it pushes the sum.

        They are the sum of its virtual node's earlier micro-batches, or the left half of a pair.
        """
        if micro_batch.virtual_node not in self._block or self._is_last(micro_batch):
            return None
        onto, self._unfinished = self._unfinished, None
        if onto is None and micro_batch.is_whole:
            onto = self._folded.take_left(Node(0, micro_batch.virtual_node))
            self._is_pair = onto is not None
        return onto

    def begin_last(self, micro_batch: MicroBatch, like: Sequence[torch.Tensor]) -> SharedSum | None:
        """Before each pass: if it is this worker's last one, the sum to which its tensors may be written one by one,
        before they are pushed. like: as for `finish`."""
        if self._shared is None or not self._is_last(micro_batch):
            return None
        lefts, self._unfinished = [] if self._unfinished is None else [self._unfinished], None
        lefts += self._folded.take_lefts(Node(0, micro_batch.virtual_node))
        self._shared.begin(like, lefts, [tensors for _, tensors in self._folded.take()])
        return self._shared

    def push(self, micro_batch: MicroBatch, tensors: Tensors) -> None:
        """In order; the caller gives the tensors away. A repeated part adds nothing.

        The micro-batches of a virtual node are added as they come, so their number does not change the memory.
        """
        virtual_node = micro_batch.virtual_node
        if virtual_node not in self._block:
            return
        if self._is_last(micro_batch):
            self._last = tensors
            return
        if self._unfinished is not None:
            tensors = _add(self._unfinished, tensors)
        if micro_batch.is_last:
            self._folded.push(Node(1, virtual_node // 2) if self._is_pair else Node(0, virtual_node), tensors)
        self._unfinished = None if micro_batch.is_last else tensors
        self._is_pair = False

    def finish(self, like: Sequence[torch.Tensor]) -> Tensors:
        """A collective: the sum, valid until the next one. like: tensors of the same shapes, the same each time.

        It is invalid if `check_received` raises PeerLost afterwards.
        """
        if self._shared is None:
            return self._folded.total()
        if not self._block:
            self._shared.begin(like, [], [])
        last, self._last = self._last, None
        return self._shared.finish(last or [None] * len(like))

    def check_received(self) -> None:
        """Before the sum changes anything permanently. Raises PeerLost if the group was closed."""
        if self._group is not None:
            self._group.check_received()

    def _is_last(self, micro_batch: MicroBatch) -> bool:
        """Whether other workers wait for the sums of this pass."""
        is_end = bool(self._block) and micro_batch.virtual_node == self._block[-1] and micro_batch.is_last
        return self._shared is not None and is_end


def _add(left: Tensors, right: Tensors) -> Tensors:
    both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    if both:
        torch._foreach_add_([one for one, _ in both], [other for _, other in both])
    return [other if one is None else one for one, other in zip(left, right, strict=True)]
