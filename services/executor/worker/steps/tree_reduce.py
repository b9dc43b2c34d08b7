"""Sums tensors along the summation tree: partial sums in each worker, the rest between workers.

The communication library moves bytes and adds nothing, so the bits depend neither on it nor on the number of workers.
Each worker receives its chunk of all subtrees, adds them along the tree, and sends the sum to all workers. The traffic
equals that of a ring if blocks are aligned, and is at most 2 log2 V times as much otherwise.
"""
# pyright: reportPrivateImportUsage=false
# (torch uses its sums of lists everywhere, but does not export them by the letter)

from collections.abc import Sequence

import torch

from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.transport import Transfer
from elasticflow.services.executor.worker.steps.summation_tree import Node, TreeSum, subtrees
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch, VirtualNodes

Tensors = list[torch.Tensor | None]  # None adds nothing, e.g. the gradient of an unused parameter
_Kind = tuple[torch.dtype, torch.device]

_ALIGNMENT = 128  # elements; 512 bytes of float32, as in tensors of their own


class TensorSum:
    """Sums lists of equally shaped tensors over all virtual nodes. group: None for a worker that is alone."""

    def __init__(self, virtual_nodes: VirtualNodes, group: Group | None) -> None:
        rank, world_size = (group.rank, group.size) if group else (0, 1)
        blocks = [virtual_nodes.block(r, world_size) for r in range(world_size)]
        self._block = blocks[rank]
        self._nodes = [subtrees(block) for block in blocks]
        self._group = group
        self._folded = TreeSum[Tensors](_add)
        self._unfinished: Tensors | None = None  # sum over the present virtual node's micro-batches so far
        self._is_pair = False  # the next push is the sum of two virtual nodes
        self._exchanges: dict[_Kind, tuple[list[int], _Exchange]] = {}
        self._shaped_like: list[int] = []

    def take_partial_sum(self, micro_batch: MicroBatch) -> Tensors | None:
        """Tensors to which a pass may add its own in place, before it pushes the sum.

        They are the sum of its virtual node's earlier micro-batches, or the left half of a pair.
        """
        if micro_batch.virtual_node not in self._block:
            return None
        onto, self._unfinished = self._unfinished, None
        if onto is None and micro_batch.is_whole:
            onto = self._folded.take_left(Node(0, micro_batch.virtual_node))
            self._is_pair = onto is not None
        return onto

    def push(self, micro_batch: MicroBatch, tensors: Tensors) -> None:
        """In order; the caller gives the tensors away. A repeated part adds nothing.

        The micro-batches of a virtual node are added as they come, so their number does not change the memory.
        """
        virtual_node = micro_batch.virtual_node
        if virtual_node not in self._block:
            return
        if self._unfinished is not None:
            tensors = _add(self._unfinished, tensors)
        if micro_batch.is_last:
            self._folded.push(Node(1, virtual_node // 2) if self._is_pair else Node(0, virtual_node), tensors)
        self._unfinished = None if micro_batch.is_last else tensors
        self._is_pair = False

    def finish(self, like: Sequence[torch.Tensor]) -> Tensors:
        """A collective: the sum, valid until the next one. like: tensors of the same shapes, the same each time."""
        if self._group is None:
            return self._folded.total()
        if self._shaped_like != (shapes := [id(tensor) for tensor in like]):
            self._shaped_like = shapes
            self._exchanges = self._prepare(like, self._group)
        partials = [tensors for _, tensors in self._folded.take()]
        total: Tensors = [None] * len(like)
        for positions, exchange in self._exchanges.values():
            summed = exchange.sum([[tensors[i] for i in positions] for tensors in partials])
            for position, tensor in zip(positions, summed, strict=True):
                total[position] = tensor
        return total

    def _prepare(self, like: Sequence[torch.Tensor], group: Group) -> "dict[_Kind, tuple[list[int], _Exchange]]":
        exchanges: dict[_Kind, tuple[list[int], _Exchange]] = {}
        kinds = [(tensor.dtype, tensor.device) for tensor in like]
        for kind in dict.fromkeys(kinds):
            positions = [i for i, its_kind in enumerate(kinds) if its_kind == kind]
            exchanges[kind] = positions, _Exchange([like[i] for i in positions], self._nodes, group)
        return exchanges


def _add(left: Tensors, right: Tensors) -> Tensors:
    both = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    if both:
        torch._foreach_add_([one for one, _ in both], [other for _, other in both])
    return [other if one is None else one for one, other in zip(left, right, strict=True)]


class _Exchange:
    """Tensors of one type on one device, adjacent in flat buffers that are reused in every step."""

    def __init__(self, like: Sequence[torch.Tensor], nodes: Sequence[Sequence[Node]], group: Group) -> None:
        self._nodes = nodes
        self._group = group
        rank = group.rank
        offsets = [0]
        for tensor in like:
            offsets.append(offsets[-1] + _aligned(tensor.numel()))
        num_elements = offsets[-1] + _aligned(len(like))
        self._flats = [like[0].new_zeros(num_elements) for _ in range(max(len(nodes[rank]), 1))]
        self._views = [
            [_view(flat, offset, tensor) for offset, tensor in zip(offsets, like, strict=False)] for flat in self._flats
        ]
        self._present = [flat[offsets[-1] : offsets[-1] + len(like)] for flat in self._flats]
        world_size = len(nodes)
        self._chunks = [
            slice(r * num_elements // world_size, (r + 1) * num_elements // world_size) for r in range(world_size)
        ]
        chunk = self._chunks[rank]
        self._received = [[like[0].new_zeros(chunk.stop - chunk.start) for _ in theirs] for theirs in self._nodes]

    def sum(self, partials: Sequence[Tensors]) -> Tensors:
        """partials: this worker's subtrees, from left to right. The sums are views of a buffer of this object."""
        for tensors, views, present in zip(partials, self._views, self._present, strict=False):
            for tensor, view in zip(tensors, views, strict=True):
                view.fill_(-0.0) if tensor is None else view.copy_(tensor)  # 0.0 + -0.0 would not be -0.0
            present.copy_(torch.tensor([tensor is not None for tensor in tensors]))
        flat = self._flats[0]
        self._gather_my_chunk()
        flat[self._chunks[self._group.rank]] = self._finished_chunk()
        self._share(flat)
        self._group.check_received()  # what a closed group has left here must not reach the model
        there = (self._present[0] != 0).tolist()
        return [view if used else None for view, used in zip(self._views[0], there, strict=True)]

    def _gather_my_chunk(self) -> None:
        """Exchange chunks of subtrees: each worker receives its chunk from all workers."""
        sends: list[Transfer] = []
        receives: list[Transfer] = []
        mine = self._flats[: len(self._nodes[self._group.rank])]
        for peer, (chunk, received) in enumerate(zip(self._chunks, self._received, strict=True)):
            if peer == self._group.rank:
                for flat, kept in zip(mine, received, strict=True):
                    kept.copy_(flat[chunk])
                continue
            sends += [Transfer(flat[chunk], peer, tag) for tag, flat in enumerate(mine)]
            receives += [Transfer(part, peer, tag) for tag, part in enumerate(received)]
        self._group.exchange(sends, receives)

    def _finished_chunk(self) -> torch.Tensor:
        summed = TreeSum[torch.Tensor](torch.Tensor.add_)
        for nodes, received in zip(self._nodes, self._received, strict=True):
            for node, part in zip(nodes, received, strict=True):
                summed.push(node, part)
        return summed.total()

    def _share(self, flat: torch.Tensor) -> None:
        mine = flat[self._chunks[self._group.rank]]
        peers = [peer for peer in range(self._group.size) if peer != self._group.rank]
        self._group.exchange(
            [Transfer(mine, peer) for peer in peers],
            [Transfer(flat[self._chunks[peer]], peer) for peer in peers],
        )


def _aligned(num_elements: int) -> int:
    return -(-num_elements // _ALIGNMENT) * _ALIGNMENT


def _view(flat: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """The part for one tensor, in the order of its elements in memory if it has no holes."""
    part = flat[offset : offset + like.numel()]
    dense = like.numel() == 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    return part.as_strided(like.shape, like.stride()) if dense and like.numel() else part.view(like.shape)
