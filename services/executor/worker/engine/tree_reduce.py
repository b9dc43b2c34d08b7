"""Sums tensors along the summation tree: partial sums in each worker, the rest between workers.

The communication library moves bytes and adds nothing, so the bits depend neither on it nor on the number of workers.
The traffic equals that of a ring if blocks are aligned, and is at most 2 log2 V times as much otherwise.
"""

# pyright: reportPrivateImportUsage=false
# (torch uses its sums of lists everywhere, but does not export them by the letter)

from collections.abc import Iterable, Sequence

import torch

from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch, VirtualNodes
from elasticflow.services.executor.worker.engine.summation_tree import TreeNode, TreeSum, subtrees
from elasticflow.services.executor.worker.engine.tree_exchange import TreeExchange
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost

# --- shared sum ----------------------------------------------------------------------------------------
# The last part of a tree sum, with other workers: it begins while a worker's last pass still computes.
#
# A tensor of that pass is added to those of the passes before, on its way into a flat buffer. When all tensors of a
# buffer's segment are there, the segment is sent.

Tensors = list[torch.Tensor | None]  # None adds nothing, e.g. the gradient of an unused parameter


class SharedSum:
    """nodes: the subtrees of each rank. The last pass ends the last subtree of this worker."""

    def __init__(self, group: Group, nodes: Sequence[Sequence[TreeNode]]) -> None:
        self._group, self._nodes = group, nodes
        self._shaped_like: list[int] = []
        self._exchanges: list[TreeExchange] = []
        self._places: list[tuple[TreeExchange, int]] = []  # of each tensor: among those of its type and device
        self._lefts: Sequence[Tensors] = ()
        self._is_there: list[bool] = []  # by tensor: some pass has one
        self._written: set[int] = set()
        self._must_repeat = False

    def begin(self, like: Sequence[torch.Tensor], lefts: Sequence[Tensors], others: Sequence[Tensors]) -> None:
        """like: tensors of the same shapes. lefts: to which the last pass's are added, in this order, from the left.
        others: this worker's subtrees before the last one."""
        if self._shaped_like != (shapes := [id(tensor) for tensor in like]):
            self._shaped_like = shapes
            self._prepare(like)
        self._lefts, self._written, self._must_repeat = lefts, set(), False
        for exchange in self._exchanges:
            exchange.restart()
        self._is_there = [any(t[i] is not None for t in (*lefts, *others)) for i in range(len(like))]
        for subtree, tensors in enumerate(others):
            for tensor, (exchange, index) in zip(tensors, self._places, strict=True):
                _write([tensor], exchange.views[subtree][index])

    def _prepare(self, like: Sequence[torch.Tensor]) -> None:
        kinds = [(tensor.dtype, tensor.device) for tensor in like]
        exchanges: dict[tuple[torch.dtype, torch.device], TreeExchange] = {}
        first_tag = 0
        for kind in dict.fromkeys(kinds):
            alike = [tensor for tensor, its_kind in zip(like, kinds, strict=True) if its_kind == kind]
            exchanges[kind] = TreeExchange(alike, self._nodes, self._group, first_tag)
            first_tag += exchanges[kind].num_tags
        self._exchanges = list(exchanges.values())
        self._places = [(exchanges[kind], kinds[:i].count(kind)) for i, kind in enumerate(kinds)]

    def write(self, position: int, tensor: torch.Tensor | None) -> None:
        """A tensor of the last pass; once more if it has changed."""
        exchange, index = self._places[position]
        self._is_there[position] |= tensor is not None
        if position in self._written:
            self._must_repeat |= exchange.has_sent_from(index)
        if self._nodes[self._group.rank]:
            _write([tensor, *(left[position] for left in self._lefts)], exchange.views[-1][index])
        if position not in self._written:
            self._written.add(position)
            exchange.note_written(index)

    def send_written(self) -> None:
        """Begin to exchange what is complete. After a loss it does nothing, and `finish` raises."""
        try:
            self._begin_complete_segments()
        except PeerLost:
            return

    def _begin_complete_segments(self) -> None:
        for exchange in self._exchanges:  # in the same order on all workers
            exchange.begin_complete_segments()
            if not exchange.has_begun_all:
                break

    def finish(self, last: Tensors) -> Tensors:
        """A collective: the sum. last: all tensors of the last pass, as they are now."""
        for position, tensor in enumerate(last):
            if position not in self._written:
                self.write(position, tensor)
        self._lefts = ()
        self._begin_complete_segments()
        flags = torch.tensor([*self._is_there, self._must_repeat], dtype=torch.uint8)
        *is_there, must_repeat = torch.stack(self._group.all_gather(flags)).amax(0).tolist()
        if must_repeat:
            self._send_again()
        for exchange in self._exchanges:
            exchange.finish()
        sums = (exchange.views[0][index] for exchange, index in self._places)
        return [each if there else None for each, there in zip(sums, is_there, strict=True)]

    def _send_again(self) -> None:
        """A backward pass of some worker changed a gradient that it had announced."""
        for exchange in self._exchanges:
            exchange.wait()
            exchange.restart()
            exchange.note_all_written()
        self._begin_complete_segments()


def _write(addends: Tensors, view: torch.Tensor) -> None:
    """The sum of the addends, each from the left. Their values stay, since the first may change and come again."""
    there = [addend for addend in addends if addend is not None]
    if not there:
        view.fill_(-0.0)  # 0.0 + -0.0 would not be -0.0
    elif len(there) == 1:
        view.copy_(there[0])
    else:
        partial, *between, last = there
        for left in between:
            partial = left + partial
        torch.add(last, partial, out=view)


# --- tree reduce ---------------------------------------------------------------------------------------


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
            onto = self._folded.take_left(TreeNode(0, micro_batch.virtual_node))
            self._is_pair = onto is not None
        return onto

    def begin_last(self, micro_batch: MicroBatch, like: Sequence[torch.Tensor]) -> SharedSum | None:
        """Return, for this worker's last pass, the sum to which its tensors may be written one by one, before they are
        pushed. It is called before each pass. like: as for `finish`."""
        if self._shared is None or not self._is_last(micro_batch):
            return None
        lefts, self._unfinished = [] if self._unfinished is None else [self._unfinished], None
        lefts += self._folded.take_lefts(TreeNode(0, micro_batch.virtual_node))
        self._shared.begin(like, lefts, [tensors for _, tensors in self._folded.take()])
        return self._shared

    def push(self, micro_batch: MicroBatch, tensors: Tensors) -> None:
        """Add the tensors of each pass, in order; the caller gives the tensors away. A repeated part adds nothing.

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
            self._folded.push(TreeNode(1, virtual_node // 2) if self._is_pair else TreeNode(0, virtual_node), tensors)
        self._unfinished = None if micro_batch.is_last else tensors
        self._is_pair = False

    def of(
        self,
        computed: Sequence[MicroBatch],
        rows: Iterable[Sequence[torch.Tensor | None]],
        like: Sequence[torch.Tensor],
    ) -> Tensors:
        """A collective, as `finish`: the sum of one row of tensors for each pass. A row is made when it is its turn."""
        for micro_batch, row in zip(computed, rows, strict=True):
            self.begin_last(micro_batch, like)
            self.push(micro_batch, [*row])
        return self.finish(like)

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
        """Check the sum before it changes anything permanently. Raises PeerLost if the group was closed."""
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
