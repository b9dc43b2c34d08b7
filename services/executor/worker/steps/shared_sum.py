"""The last part of a tree sum, with other workers: it begins while a worker's last pass still computes.

A tensor of that pass is added to those of the passes before, on its way into a flat buffer. When all tensors of a
buffer's segment are there, the segment is sent.
"""

from collections.abc import Sequence

import torch

from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.steps.summation_tree import Node
from elasticflow.services.executor.worker.steps.tree_exchange import TreeExchange

Tensors = list[torch.Tensor | None]  # None adds nothing, e.g. the gradient of an unused parameter


class SharedSum:
    """nodes: the subtrees of each rank. The last pass ends the last subtree of this worker."""

    def __init__(self, group: Group, nodes: Sequence[Sequence[Node]]) -> None:
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
