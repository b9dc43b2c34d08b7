"""The free buddy blocks during one placement, the best of them for one job, and where the jobs are.

Sets of positions and of blocks are ints, see `buddy_blocks`.
Source: ElasticFlow, section 4.3.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.scheduling.placement.buddy_blocks import BitSet, Blocks, first, log2
from elasticflow.shared.state.topology import Level, Topology


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

    def fragments(self, num_gpus: int) -> BitSet:
        """Free GPUs where no block is free: close together first, then without avoided positions, then in few
        fragments.
        """
        part, chosen = self._closest(num_gpus), 0
        for s in reversed(range(num_gpus.bit_length() - 1)):
            whole = self._blocks.inside(part, s)
            while whole and num_gpus >= 1 << s:
                best = whole & self._blocks.inside(part & ~self._avoided, s) or whole
                piece = ((1 << (1 << s)) - 1) << first(best)
                chosen, part, whole = chosen | piece, part & ~piece, whole & ~piece
                num_gpus -= 1 << s
        return chosen

    def _closest(self, num_gpus: int) -> BitSet:
        """Free positions of the lowest part of the tree that has enough; without avoided ones if a part of the same
        level suffices.
        """
        part, others = self._blocks.closest(self.positions, num_gpus), self.positions & ~self._avoided
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

    def __init__(self, topology: Topology) -> None:
        self.topology, self.blocks = topology, Blocks(topology)
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
