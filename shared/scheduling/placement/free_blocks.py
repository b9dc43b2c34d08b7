"""The free buddy blocks during one placement, and the best of them for one job.

Sets of positions and of blocks are ints, see `buddy_blocks`.
Source: ElasticFlow, section 4.3.
"""

from elasticflow.shared.scheduling.placement.buddy_blocks import BitSet, Blocks, first


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

    def best_fit(self, s: int, among: BitSet = -1) -> int | None:
        """Where the best free block of 2^s GPUs begins; None if there is none. among: the blocks that may be taken.

        The fastest level first; then blocks without avoided positions; then the block in the smallest free block
        around it, so that large blocks stay whole.
        """
        for _, blocks in self._blocks.blocks_by_level(s):
            candidates = self._free_S[s] & blocks & among
            if candidates:
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
