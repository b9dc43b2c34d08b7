"""Buddy blocks: by position, and the free ones during a placement. `placement` assigns them.

`Topology.blocks` pairs the GPUs up. So a cluster of any shape becomes one binary tree for each binary digit of its
number of GPUs, and every block is joined as low in the topology as possible. Any powers of two whose sum fits the
cluster fit its blocks, largest first; no set of nodes needs a special case. Numbered tree by tree, largest first, the
GPUs get *positions* such that every block of 2^s GPUs is a range [k 2^s, (k+1) 2^s).

A set of positions is an int in which bit p stands for position p; a set of blocks has the bits of their first
positions. The free blocks of every size then follow from a few shifts of whole sets, about 100 ns each at 16,384 GPUs.
Axes: P = positions; R = ranks in tree order; S = sizes, where s stands for 2^s GPUs. Source: ElasticFlow, section 4.3.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.state.topology import GPU, NODE, Block, Branch, Level, Topology

BitSet = int
_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


class Blocks:
    """The positions and blocks of one topology; gpus_P: its GPUs by position.

    claimed_levels: what connects the blocks of 1, 2, 4, ... GPUs at worst to which jobs have a claim; None: any block.
    """

    def __init__(self, topology: Topology, claimed_levels: Sequence[Level] | None = None) -> None:
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
        self.claimed_levels = topology.block_levels if claimed_levels is None else tuple(claimed_levels)
        self._worst_level_S = self.claimed_levels
        self._of_claims_S = [
            sum(of_level for level, of_level in of_size if level <= worst)
            for of_size, worst in zip(self._blocks_by_level_S, self._worst_level_S, strict=True)
        ]
        self._unit_S = [_unit(self._worst_level_S, topology.worst_level, s) for s in range(len(self._worst_level_S))]
        self._of_gangs = dict[tuple[int, int], BitSet]()
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
        """What connects the worst block of 2^s GPUs to which a job has a claim."""
        return self._worst_level_S[s]

    def of_claims(self, s: int) -> BitSet:
        """The blocks of 2^s GPUs to which jobs have a claim."""
        return self._of_claims_S[s]

    def of_gangs(self, s: int, gang: int) -> BitSet:
        """The blocks of 2^s GPUs of which each block of 2^gang GPUs lies in one node."""
        if (s, gang) not in self._of_gangs:
            blocks = 0
            for level, of_level in self._blocks_by_level_S[gang] if gang < len(self._blocks_by_level_S) else ():
                blocks |= of_level if level <= NODE else 0
            for half in range(gang, s):
                blocks &= blocks >> (1 << half) & self.aligned_S[half + 1] if half + 1 < len(self.aligned_S) else 0
            self._of_gangs[s, gang] = blocks
        return self._of_gangs[s, gang]

    def in_gangs(self, positions: BitSet, gang: int) -> BitSet:
        """Those of these positions that are parts of whole blocks of 2^gang GPUs of one node."""
        found = self.inside(positions, gang) & self.of_gangs(gang, gang)
        for half in range(gang):
            found |= found << (1 << half)
        return found

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

    def apart(self, positions: BitSet, num_gpus: int, level: Level) -> BitSet | None:
        """`num_gpus` of these positions, at least 2, that `level` connects and no faster one; None if there are none.

        As in a block, the faster parts that they are in have half of them at most. Small parts come first.
        """
        inner_P = next((part_P for at, part_P in reversed(self._part_by_level_P) if at < level), None)
        outer_P = next((part_P for at, part_P in self._part_by_level_P if at >= level), None)
        if outer_P is None:
            return None
        half, among_P = num_gpus // 2, self._bools_P(positions)
        for part in np.unique(outer_P[among_P]):
            here = np.flatnonzero(among_P & (outer_P == part)).tolist()
            inside = defaultdict[int, list[int]](list)
            for position in here:
                inside[position if inner_P is None else int(inner_P[position])].append(position)
            chosen = list[int]()
            for part_here in sorted(inside.values(), key=lambda each: (len(each) < half, abs(len(each) - half), each)):
                chosen += part_here[: min(half, num_gpus - len(chosen))]
            if len(chosen) == num_gpus:
                return bits(chosen)
        return None

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


# --- free blocks --------------------------------------------------------------------------------------
# The free buddy blocks during one placement, the best of them for one job, and where the jobs are.
#
# Sets of positions and of blocks are ints. Source: ElasticFlow, section 4.3.


class FreeBlocks:
    """The free positions during one placement, and the completely free blocks of every size.

    avoided: free positions that are taken only where no other serves as well.
    """

    def __init__(self, blocks: Blocks, free: BitSet, avoided: BitSet = 0) -> None:
        self._blocks, self._avoided = blocks, avoided
        self._set(free)

    @property
    def positions(self) -> BitSet:
        """All free positions."""
        return self._free_S[0] if self._free_S else 0

    def take(self, positions: BitSet) -> None:
        """Mark these positions as taken."""
        assert not positions & ~self.positions, "a GPU is taken twice"
        self._set(self.positions ^ positions)

    def give(self, positions: BitSet) -> None:
        """Mark these positions as free."""
        self._set(self.positions | positions)

    def take_block(self, s: int, start: int) -> None:
        """Mark a free block as taken, with every block inside it or around it: `take`, only faster."""
        for size, inner in enumerate(self._blocks.inner_SS[s]):
            self._free_S[size] ^= inner << start
        for size in range(s + 1, len(self._free_S)):
            around = start >> size << size
            if not self._free_S[size] >> around & 1:
                break
            self._free_S[size] ^= 1 << around

    def best_fit(self, s: int, among: BitSet = -1, *, worst_level: bool = False) -> int | None:
        """The start of the best free block of 2^s GPUs; None if there is none. among: the blocks that may be taken.

        The fastest level comes first; then blocks without avoided positions; then the block in the smallest free block
        around it, so large blocks stay whole. worst_level: blocks without avoided positions come first, then the
        slowest level.
        """
        by_level, free = self._blocks.blocks_by_level(s), self._free_S[s] & among
        if worst_level:
            by_level, free = by_level[::-1], self._preferred(free, s)
        for _, blocks in by_level:
            if candidates := free & blocks:
                return first(self._in_smallest_free_block(self._preferred(candidates, s), s))
        return None

    def fragments(self, num_gpus: int, gang: int = 0) -> BitSet:
        """Free GPUs where no block is free: close together first, then without avoided positions, then in few
        fragments. Each is of 2^gang GPUs at least, and of whole ones that are free; enough must be.
        """
        part, chosen = self._closest(num_gpus, gang), 0
        for s in reversed(range(gang, num_gpus.bit_length() - 1)):
            whole = self._blocks.inside(part, s)
            while whole and num_gpus >= 1 << s:
                best = whole & self._blocks.inside(part & ~self._avoided, s) or whole
                piece = ((1 << (1 << s)) - 1) << first(best)
                chosen, part, whole = chosen | piece, part & ~piece, whole & ~piece
                num_gpus -= 1 << s
        return chosen

    def apart(self, num_gpus: int, level: Level) -> BitSet | None:
        """Free GPUs that `level` connects and no faster one, none of them avoided; None if there are too few."""
        return self._blocks.apart(self.positions & ~self._avoided, num_gpus, level)

    def _closest(self, num_gpus: int, gang: int) -> BitSet:
        """Free positions of the lowest part of the tree that has enough; without avoided ones if a part of the same
        level suffices.
        """
        free, others = self.positions, self.positions & ~self._avoided
        if gang:
            free, others = self._blocks.in_gangs(free, gang), self._blocks.in_gangs(others, gang)
        part = self._blocks.closest(free, num_gpus)
        if part & self._avoided and others.bit_count() >= num_gpus:
            among_others = self._blocks.closest(others, num_gpus)
            if self._blocks.level(among_others) == self._blocks.level(part):
                return among_others
        return part

    def _preferred(self, candidates: BitSet, s: int) -> BitSet:
        """The free blocks of 2^s GPUs without avoided positions, or all of them if there are none."""
        if not self._avoided:
            return candidates
        return candidates & self._blocks.inside(self.positions & ~self._avoided, s) or candidates

    def _in_smallest_free_block(self, candidates: BitSet, s: int) -> BitSet:
        """The free blocks of 2^s GPUs around which the largest free block is smallest."""
        for size, free in enumerate(self._free_S[s:-1], s):
            wider = self._free_S[size + 1]
            largest = free & ~(wider | wider << (1 << size))
            if largest:
                for half in reversed(range(s, size)):
                    largest |= largest << (1 << half)
                if largest & candidates:
                    return largest & candidates
        return candidates

    def _set(self, free: BitSet) -> None:
        self._free_S = [free] if self._blocks.gpus_P else list[BitSet]()
        for half, aligned in enumerate(self._blocks.aligned_S[1:]):
            free &= free >> (1 << half) & aligned
            self._free_S.append(free)


# --- gpu positions -------------------------------------------------------------------------------------
# The GPUs of jobs as positions among buddy blocks. `placement` assigns them.


@dataclass(frozen=True)  # not slotted: derived values are cached properties
class GpuPositions:
    """The GPUs of a job. num_gpus: how many they are, or -1 if not all of them exist."""

    blocks: Blocks
    gpus: tuple[GpuId, ...]
    num_gpus: int

    @cached_property
    def positions(self) -> BitSet:
        """Their positions."""
        return self.blocks.positions(self.gpus)

    @cached_property
    def members(self) -> list[int]:
        """Their positions one by one, ascending."""
        return self.blocks.members(self.positions)

    @cached_property
    def level(self) -> Level:
        """What connects them."""
        return self.blocks.level(self.positions)

    @cached_property
    def meets_claim(self) -> bool:
        """Whether they are connected no worse than the worst buddy block of their size, and on no more nodes than there
        are units in one."""
        if self.num_gpus <= 0 or self.num_gpus & (self.num_gpus - 1):
            return True
        size = log2(self.num_gpus)
        num_nodes = len({gpu.node_id for gpu in self.gpus})
        return self.level <= self.blocks.worst_level(size) and (num_nodes <= 1 << max(size - self.blocks.unit(size), 0))

    @property
    def spread(self) -> bool:
        """Whether blocks of the same size exist, free or not, that are connected better."""
        return self.level > self.blocks.blocks_by_level(log2(self.num_gpus))[0][0]


class LastPositions:
    """The last placement on a topology. A cache and no state: most jobs keep their GPUs from one placement to the
    next.
    """

    def __init__(self, topology: Topology, claimed_levels: Sequence[Level] | None = None) -> None:
        self.topology, self.blocks = topology, Blocks(topology, claimed_levels)
        self.keep({}, 0)

    def keep(self, positions_by_job: Mapping[str, GpuPositions], taken: BitSet) -> None:
        """Store a placement and all positions that it takes."""
        self._positions_by_job, self._taken = positions_by_job, taken

    def positions_of(self, job_id: str, gpus: tuple[GpuId, ...]) -> GpuPositions:
        """The positions of a job on these GPUs."""
        held = self._positions_by_job.get(job_id)
        if held is not None and (held.gpus is gpus or held.gpus == gpus):
            return held
        exist = all(gpu in self.blocks.position_by_gpu for gpu in gpus)
        return GpuPositions(self.blocks, gpus, len(gpus) if exist else -1)

    def taken_by(self, positions_by_job: Mapping[str, GpuPositions]) -> BitSet:
        """All taken positions, computed from those that differ from the last placement."""
        taken = self._taken
        gone = [held for job_id, held in self._positions_by_job.items() if positions_by_job.get(job_id) is not held]
        new = [held for job_id, held in positions_by_job.items() if self._positions_by_job.get(job_id) is not held]
        if len(gone) > len(positions_by_job):
            taken, gone, new = 0, [], list(positions_by_job.values())
        for held in gone:
            taken ^= held.positions
        for held in new:
            assert not taken & held.positions, f"two jobs on one GPU of {held.gpus}"
            taken |= held.positions
        return taken


@dataclass(frozen=True, slots=True)
class MigratableJobs:
    """The positions of the jobs that may migrate."""

    positions: BitSet
    job_by_position: Mapping[int, str]

    @staticmethod
    def of(blocks: Blocks, positions_by_job: Mapping[str, GpuPositions]) -> "MigratableJobs":
        positions, job_by_position = 0, dict[int, str]()
        for job_id, held in positions_by_job.items():
            positions |= held.positions
            job_by_position.update(dict.fromkeys(map(blocks.position_by_gpu.__getitem__, held.gpus), job_id))
        return MigratableJobs(positions, job_by_position)

    def within(self, positions: Iterable[int]) -> list[str]:
        """The jobs on any of these positions."""
        here = map(self.job_by_position.get, positions)
        return list(dict.fromkeys(job_id for job_id in here if job_id is not None))
