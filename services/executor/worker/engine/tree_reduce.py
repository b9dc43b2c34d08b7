"""Sums tensors along the summation tree: partial sums in each worker, the rest between workers.

The communication library moves bytes and adds nothing, so the bits depend neither on it nor on the number of workers.
The traffic equals that of a ring if blocks are aligned, and is at most 2 log2 V times as much otherwise.
"""

# pyright: strict, reportPrivateImportUsage=false, reportPrivateUsage=false, reportUnknownMemberType=false
# (torch uses its sums of lists everywhere, but does not export them by the letter, and its lists have no type)

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import cast

import torch

from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch, VirtualNodes
from elasticflow.services.executor.worker.engine.summation_tree import TreeNode, TreeSum, subtrees
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Transfer

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
        *is_there, must_repeat = cast("list[int]", torch.stack(self._group.all_gather(flags)).amax(0).tolist())
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


# --- tree exchange ------------------------------------------------------------------------------------
# The part of a tree sum between workers: flat buffers, exchanged and added segment by segment.
#
# In each stage a worker receives its part of all subtrees from some peers, and adds them along the tree. After the last
# stage it has its part of the sum, and the stages in reverse give it all parts. Usually there is one stage, of all
# workers. With equally many workers on several hosts, the first stage stays within a host, and the second one is
# between workers of equal place on their hosts. The tree decides the order of additions in any case, so the bits are
# equal.

# --- flat layout ---------------------------------------------------------------------------------------
# Where tensors of one type lie in a flat buffer, and its segments, which the workers exchange one after another.
#
# A backward pass finishes the last parameters first, so these lie first. Each segment has one equal part for each
# worker, on bounds that suit vector instructions and the network.

_ALIGNMENT = 128  # elements; 512 bytes of float32, as in tensors of their own
_SEGMENT_BYTES = 8 << 20  # enough for full speed of the network, few enough to begin early


class FlatLayout:
    """like: the tensors. num_parts: of each segment."""

    def __init__(self, like: Sequence[torch.Tensor], num_parts: int) -> None:
        self._like = like
        self._offsets = [0] * len(like)
        end = 0
        for position in reversed(range(len(like))):
            self._offsets[position] = end
            end += _multiple(max(like[position].numel(), 1), _ALIGNMENT)
        unit = num_parts * _ALIGNMENT
        self.num_elements = _multiple(end, unit)
        self._segment_elements = _multiple(_SEGMENT_BYTES // like[0].element_size(), unit)
        bounds = [*range(0, self.num_elements, self._segment_elements), self.num_elements]
        self.segments = [slice(start, stop) for start, stop in pairwise(bounds)]

    def segments_of(self, position: int) -> range:
        """The segments in which a part of this tensor lies."""
        first = self._offsets[position]
        last = first + max(self._like[position].numel(), 1) - 1
        return range(first // self._segment_elements, last // self._segment_elements + 1)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of the tensors, in the order of their elements in memory if they have no holes."""
        return [_view(flat, offset, like) for offset, like in zip(self._offsets, self._like, strict=True)]


def part(whole: slice, index: int, num_parts: int) -> slice:
    """One of equal parts."""
    size = (whole.stop - whole.start) // num_parts
    return slice(whole.start + index * size, whole.start + (index + 1) * size)


def _multiple(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _view(flat: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    own = flat[offset : offset + like.numel()]
    dense = like.numel() == 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    return own.as_strided(like.shape, like.stride()) if dense and like.numel() else own.view(like.shape)


# --- tree exchange -------------------------------------------------------------------------------------

Subtree = tuple[TreeNode, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Stage:
    """Exchanges between some ranks, each of which ends with one part."""

    peers: Sequence[int]
    index: int  # this worker's among them
    held: Sequence[Sequence[TreeNode]]  # by peer: its subtrees before the stage
    received: Sequence[Sequence[torch.Tensor]]  # by peer and subtree: this worker's part

    def part_of(self, region: slice) -> slice:
        return part(region, self.index, len(self.peers))


class TreeExchange:
    """The exchange of tensors of one type on one device. nodes: the subtrees of each rank. first_tag: of `num_tags`."""

    def __init__(
        self, like: Sequence[torch.Tensor], nodes: Sequence[Sequence[TreeNode]], group: Group, first_tag: int
    ) -> None:
        self._group, self._first_tag = group, first_tag
        self._layout = FlatLayout(like, group.size)
        self._segments = self._layout.segments
        self._own = nodes[group.rank]
        self._flats = [like[0].new_zeros(self._layout.num_elements) for _ in range(max(len(self._own), 1))]
        self.views = [self._layout.views(flat) for flat in self._flats]  # by subtree and position
        self._stages = self._make_stages(nodes)
        self._tags_of_segment = 1 + max(len(subtrees) for stage in self._stages for subtrees in stage.held)
        self.num_tags = len(self._segments) * self._tags_of_segment
        self.restart()

    def _make_stages(self, nodes: Sequence[Sequence[TreeNode]]) -> list[_Stage]:
        stages: list[_Stage] = []
        rank, hosts, num_elements = self._group.rank, self._group.hosts, self._layout.num_elements
        held = list(nodes)
        for peers in stage_peers(rank, hosts):
            num_elements //= len(peers)
            theirs = [held[peer] for peer in peers]
            received = [
                [self._flats[0].new_zeros(num_elements if peer != rank else 0) for _ in subtrees]
                for peer, subtrees in zip(peers, theirs, strict=True)
            ]
            stages.append(_Stage(peers, peers.index(rank), theirs, received))
            held = [_merged([held[peer] for peer in stage_peers(r, hosts)[0]]) for r in range(len(hosts))]
        return stages

    # --- before the last pass has ended ---

    def restart(self) -> None:
        """Reset the exchange before the tensors of a sum come, or come again."""
        self._missing = [0] * len(self._segments)
        for position in range(len(self.views[0])):
            self._count(position, +1)
        self._waits: list[Callable[[], None]] = []  # of the segments that have begun
        self._parts: list[list[Subtree]] = []  # of them: this worker's part of all subtrees, once they are there

    def _count(self, position: int, number: int) -> None:
        for segment in self._layout.segments_of(position):
            self._missing[segment] += number

    @property
    def has_begun_all(self) -> bool:
        return len(self._waits) == len(self._segments)

    def has_sent_from(self, position: int) -> bool:
        """Whether a part of this tensor has begun."""
        return self._layout.segments_of(position).start < len(self._waits)

    def note_written(self, position: int) -> None:
        """Note, once for each tensor, that its views have their values."""
        self._count(position, -1)

    def note_all_written(self) -> None:
        self._missing = [0] * len(self._segments)

    def begin_complete_segments(self) -> None:
        """The first stage, in order: all workers exchange the segments in the same order."""
        while not self.has_begun_all and self._missing[len(self._waits)] == 0:
            segment = self._segments[len(self._waits)]
            self._waits.append(lambda: None)
            self._parts.append([])
            own = [(node, flat[segment]) for node, flat in zip(self._own, self._flats, strict=False)]
            self._begin_gathering(0, len(self._waits) - 1, own)

    def wait(self) -> None:
        """Wait for what has begun."""
        for wait in self._waits:
            wait()

    # --- after it ---

    def finish(self) -> None:
        """Finish the sum after all segments have begun: the views of the first subtree become the sum."""
        num_stages = len(self._stages)
        for number in range(num_stages):
            for index, wait in enumerate(self._waits):
                wait()
                if number + 1 < num_stages:
                    self._begin_gathering(number + 1, index, _summed(self._parts[index]))
                else:
                    _sum_onto(self._flats[0][self._region(num_stages, index)], self._parts[index])
                    self._begin_sharing(number, index)
        for number in reversed(range(num_stages - 1)):
            for index, wait in enumerate(self._waits):
                wait()
                self._begin_sharing(number, index)
        self.wait()

    def _region(self, number: int, index: int) -> slice:
        """The part of a segment that is this worker's when this stage begins."""
        region = self._segments[index]
        for stage in self._stages[:number]:
            region = stage.part_of(region)
        return region

    def _begin_gathering(self, number: int, index: int, own: Sequence[Subtree]) -> None:
        """Each peer receives its part of all subtrees."""
        stage = self._stages[number]
        whole = slice(0, own[0][1].numel()) if own else slice(0, 0)
        parts, sends, receives = list[Subtree](), list[Transfer](), list[Transfer]()
        divisor = prod(len(each.peers) for each in self._stages[: number + 1])
        segment = self._segments[index]
        arriving = slice(segment.start // divisor, segment.stop // divisor)
        for place, (peer, held) in enumerate(zip(stage.peers, stage.held, strict=True)):
            its_part = part(whole, place, len(stage.peers))
            if place == stage.index:
                parts += [(node, tensor[its_part]) for node, tensor in own]
                continue
            sends += [Transfer(tensor[its_part], peer, self._tag(index, k)) for k, (_, tensor) in enumerate(own, 1)]
            for k, (node, memory) in enumerate(zip(held, stage.received[place], strict=True), 1):
                receives.append(Transfer(memory[arriving], peer, self._tag(index, k)))
                parts.append((node, memory[arriving]))
        self._parts[index] = parts
        self._waits[index] = self._group.begin_exchange(sends, receives)

    def _begin_sharing(self, number: int, index: int) -> None:
        """Each peer receives this worker's part of the sum."""
        stage, region, tag = self._stages[number], self._region(number, index), self._tag(index, 0)
        peers = [(place, peer) for place, peer in enumerate(stage.peers) if place != stage.index]
        mine = self._flats[0][stage.part_of(region)]
        self._waits[index] = self._group.begin_exchange(
            [Transfer(mine, peer, tag) for _, peer in peers],
            [Transfer(self._flats[0][part(region, place, len(stage.peers))], peer, tag) for place, peer in peers],
        )

    def _tag(self, index: int, number: int) -> int:
        return self._first_tag + index * self._tags_of_segment + number


def stage_peers(rank: int, hosts: Sequence[Hashable]) -> list[list[int]]:
    """The ranks of each stage. hosts: by rank."""
    by_host: dict[Hashable, list[int]] = {}
    for each, host in enumerate(hosts):
        by_host.setdefault(host, []).append(each)
    local = by_host[hosts[rank]]
    if len(by_host) == 1 or any(len(ranks) != len(local) for ranks in by_host.values()) or len(local) == 1:
        return [list(range(len(hosts)))]
    return [local, [ranks[local.index(rank)] for ranks in by_host.values()]]


def _in_order(subtrees: Sequence[Subtree]) -> list[Subtree]:
    return sorted(subtrees, key=lambda subtree: subtree[0].index << subtree[0].level)


def _summed(subtrees: Sequence[Subtree]) -> list[Subtree]:
    """Add subtrees, so that as few as possible remain; the tensors are overwritten."""
    summed = TreeSum[torch.Tensor](torch.Tensor.add_)
    for node, tensor in _in_order(subtrees):
        summed.push(node, tensor)
    return summed.take()


def _sum_onto(target: torch.Tensor, subtrees: Sequence[Subtree]) -> None:
    """The sum of all; the tensors are overwritten. target: may be one of them."""
    missing = len(subtrees) - 1

    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        nonlocal missing
        missing -= 1
        return torch.add(left, right, out=left if missing else target)

    summed = TreeSum[torch.Tensor](add)
    for node, tensor in _in_order(subtrees):
        summed.push(node, tensor)
    if (total := summed.total()) is not target and len(subtrees) == 1:
        target.copy_(total)


def _merged(nodes: Sequence[Sequence[TreeNode]]) -> list[TreeNode]:
    """The subtrees that remain of those of several workers."""
    summed = TreeSum[None](lambda left, right: None)
    for node in sorted((each for theirs in nodes for each in theirs), key=lambda node: node.index << node.level):
        summed.push(node, None)
    return [node for node, _ in summed.take()]
