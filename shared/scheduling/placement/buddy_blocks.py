"""Buddy blocks by position. `free_blocks` knows which are free; `placement` assigns them.

`Topology.blocks` pairs the GPUs up. So a cluster of any shape becomes one binary tree for each binary digit of its
number of GPUs, and every block is joined as low in the topology as possible. Any powers of two whose sum fits the
cluster fit its blocks, largest first; no set of nodes needs a special case. Numbered tree by tree, largest first, the
GPUs get *positions* such that every block of 2^s GPUs is a range [k 2^s, (k+1) 2^s).

A set of positions is an int in which bit p stands for position p; a set of blocks has the bits of their first
positions. The free blocks of every size then follow from a few shifts of whole sets, about 100 ns each at 16,384 GPUs.
Axes: P = positions; R = ranks in tree order; S = sizes, where s stands for 2^s GPUs. Source: ElasticFlow, section 4.3.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state.topology import GPU, Block, Branch, Level, Topology

BitSet = int
_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


class Blocks:
    """The positions and blocks of one topology; gpus_P: its GPUs by position."""

    def __init__(self, topology: Topology) -> None:
        gpus, starts = list[GpuId](), dict[tuple[int, Level], list[int]]()
        for tree in sorted(topology.blocks, key=lambda block: -block.size):
            _number(tree, gpus, starts)
        rank_by_gpu = {gpu: rank for rank, gpu in enumerate(topology.gpus)}
        sizes_S = [1 << s for s in range(len(gpus).bit_length())]
        self.gpus_P = tuple(gpus)
        self.rank_P = [rank_by_gpu[gpu] for gpu in gpus]
        self._in_tree_order = self.rank_P == list(range(len(gpus)))  # true in every regular cluster
        self.every_position = (1 << len(gpus)) - 1
        self.position_by_gpu = {gpu: position for position, gpu in enumerate(gpus)}
        self.aligned_S = [bits(range(0, len(gpus), size)) for size in sizes_S]
        # by size and inner size: the blocks of 2^inner GPUs in the first block of 2^s GPUs
        self.inner_SS = [[bits(range(0, size, inner)) for inner in sizes_S if inner <= size] for size in sizes_S]
        self._blocks_by_level_S = [
            [(level, bits(starts[at, level])) for at, level in sorted(starts) if at == size] for size in sizes_S
        ]
        self._worst_level_S = topology.block_levels
        self._unit_S = [_unit(self._worst_level_S, topology.worst_level, s) for s in range(len(self._worst_level_S))]
        self._part_by_level_P = [
            (level, part_R[self.rank_P]) for level, part_R in _parts(topology.tree, len(gpus)).items()
        ]

    def positions(self, gpus: Iterable[GpuId]) -> BitSet:
        """The set of these GPUs; GPUs outside the topology are ignored."""
        return bits(self.position_by_gpu[gpu] for gpu in gpus if gpu in self.position_by_gpu)

    def gpus(self, positions: Iterable[int]) -> tuple[GpuId, ...]:
        """The GPUs at these positions, in tree order."""
        return tuple(self.gpus_P[position] for position in sorted(positions, key=self.rank_P.__getitem__))

    def gpus_of_block(self, s: int, start: int) -> tuple[GpuId, ...]:
        """The 2^s GPUs of the block that begins at `start`, in tree order."""
        end = start + (1 << s)
        return self.gpus_P[start:end] if self._in_tree_order else self.gpus(range(start, end))

    def members(self, positions: BitSet) -> list[int]:
        """The positions in a set, ascending."""
        return np.flatnonzero(self._bools_P(positions)).tolist()

    def blocks_by_level(self, s: int) -> Sequence[tuple[Level, BitSet]]:
        """The blocks of 2^s GPUs by what connects them, fastest first."""
        return self._blocks_by_level_S[s]

    def worst_level(self, s: int) -> Level:
        """What connects the worst block of 2^s GPUs."""
        return self._worst_level_S[s]

    def unit(self, s: int) -> int:
        """The exponent of the blocks that a job of 2^s GPUs needs: smaller ones where any of these serve as well.

        Jobs that the top of the tree connects need only parts of it that are whole, such as nodes.
        """
        return self._unit_S[s]

    def level_of_block(self, s: int, start: int) -> Level:
        """What connects the block of 2^s GPUs that begins at `start`."""
        return next(level for level, blocks in self._blocks_by_level_S[s] if blocks >> start & 1)

    def level(self, positions: BitSet) -> Level:
        """What connects these GPUs: the lowest part of the tree that contains all of them."""
        members = self.members(positions)
        if len(members) < 2:
            return GPU
        parts = ((level, part_P[members]) for level, part_P in self._part_by_level_P)
        return next(level for level, part in parts if (part == part[0]).all())

    def inside(self, positions: BitSet, s: int) -> BitSet:
        """The blocks of 2^s GPUs that lie completely within a set of positions."""
        blocks = positions
        for half in range(s):
            blocks &= blocks >> (1 << half) & self.aligned_S[half + 1]
        return blocks

    def near(self, own: BitSet, s: int) -> BitSet:
        """The blocks of 2^s GPUs inside the positions of a job; if these are too few, the block around them."""
        if own.bit_count() >= 1 << s:
            return self.inside(own, s)
        start = first(own) >> s << s if own else 0
        return 1 << start if own and own >> start >> (1 << s) == 0 else 0

    def closest(self, positions: BitSet, num_gpus: int) -> BitSet:
        """The positions in the lowest part of the tree that has `num_gpus` of them; best fit among equals."""
        among_P = self._bools_P(positions)
        for _, part_P in self._part_by_level_P:
            counts = np.bincount(part_P[among_P])
            enough = np.flatnonzero(counts >= num_gpus)
            if len(enough):
                fullest = enough[np.argmin(counts[enough])]
                return int.from_bytes(np.packbits(among_P & (part_P == fullest), bitorder="little"), "little")
        raise AssertionError("more GPUs wanted than are free")

    def counts(self, positions: BitSet, s: int) -> _Ints:
        """How many of `positions` lie in each block of 2^s GPUs, by position / 2^s."""
        num_blocks = len(self.gpus_P) >> s
        return self._bools_P(positions)[: num_blocks << s].reshape(num_blocks, 1 << s).sum(axis=1)

    def _bools_P(self, positions: BitSet) -> _Bools:
        octets = np.frombuffer(positions.to_bytes(len(self.gpus_P) // 8 + 1, "little"), np.uint8)
        return np.unpackbits(octets, count=len(self.gpus_P), bitorder="little").view(np.bool_)


def _unit(worst_level_S: Sequence[Level], top: Level, s: int) -> int:
    """See `Blocks.unit`."""
    near = [inner for inner in range(s) if worst_level_S[inner] < top]
    return max(near, default=0) if worst_level_S[s] == top else s


def _number(block: Block, gpus: list[GpuId], starts: dict[tuple[int, Level], list[int]]) -> None:
    """Give the GPUs of a block the next positions; record where it and the blocks in it begin."""
    starts.setdefault((block.size, block.level), []).append(len(gpus))
    if isinstance(block.halves, GpuId):
        gpus.append(block.halves)
    else:
        for half in block.halves:
            _number(half, gpus, starts)


def _parts(tree: Branch, num_gpus: int) -> dict[Level, _Ints]:
    """A number for the largest part of the tree at or below each level, by level, ascending, and rank."""
    spans = list[tuple[Level, int, int]]()

    def walk(part: Branch | GpuId, first: int) -> int:
        if isinstance(part, GpuId):
            return first + 1
        end = first
        for child in part.children:
            end = walk(child, end)
        spans.append((part.level, first, end))
        return end

    walk(tree, 0)
    parts_R = {level: np.arange(num_gpus) for level in sorted({level for level, _, _ in spans})}
    for level, first, end in spans:  # inner parts come before outer ones
        for at_level, part_R in parts_R.items():
            if at_level >= level:
                part_R[first:end] = first
    return parts_R


def first(positions: BitSet) -> int:
    """The lowest position in a set that is not empty."""
    return (positions & -positions).bit_length() - 1


def log2(num_gpus: int) -> int:
    """The exponent of a power of two."""
    return num_gpus.bit_length() - 1


def bits(positions: Iterable[int]) -> BitSet:
    """The set of these positions."""
    bits = 0
    for position in positions:
        bits |= 1 << position
    return bits
