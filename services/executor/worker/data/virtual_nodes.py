"""Virtual nodes: how a job's global batch is cut into fixed parts, and which worker computes them. Pure.

A global batch is cut into V parts, one for each virtual node, and V is fixed for the life of a job. Workers compute
contiguous blocks of virtual nodes, so their number and the sizes of their blocks decide where a part is computed, never
what is computed (VirtualFlow, sections 3 and 5). A part that exceeds a GPU's memory is cut again, into micro-batches. A
virtual node stays on one worker, which adds its micro-batches one after another.
"""

# pyright: strict

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

_MOST_BY_DEFAULT = 8  # each is a forward and a backward pass of its own: more of them may cost more time
_MOST_EXTRA = 0.03  # of the step of one GPU, for more virtual nodes than it needs
_PARTS_OF_FAST_JOBS = 256  # of the batch: few enough to measure, and enough to balance dozens of GPUs


def default_count(global_batch_size: int, gang: int = 1) -> int:
    """The largest power of two up to 8 and to the batch. gang: workers that divide the samples of each."""
    return 1 << (min(max(global_batch_size // gang, 1), _MOST_BY_DEFAULT).bit_length() - 1)


def counts_to_choose_from(global_batch_size: int, most: int) -> tuple[int, ...]:
    """Powers of two up to `most` and to the batch."""
    return tuple(1 << exponent for exponent in range(min(global_batch_size, most).bit_length()))


def chosen_count(step_s_by_count: Mapping[int, float]) -> int:
    """The most virtual nodes with which the step of one GPU takes at most 3 % longer than with the best number.

    They have the smallest micro-batches that one GPU computes efficiently. So a job has no more GPUs than it can use,
    and pays nothing for them while it has one.
    """
    allowed_s = (1 + _MOST_EXTRA) * min(step_s_by_count.values())
    return max(count for count, step_s in step_s_by_count.items() if step_s <= allowed_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The input of one forward and backward pass: a virtual node's samples, or a part of them."""

    virtual_node: int
    index: int  # within the virtual node
    samples: slice  # of the global batch
    weight: float  # its part of the global batch: the weight of a mean over its samples
    is_last: bool  # of its virtual node
    position: int = 0  # of the worker in its gang that has these samples
    num_positions: int = 1  # of the gang

    @property
    def number(self) -> int:
        """Within the virtual node, among the parts of all workers of a gang: for its own random numbers."""
        return self.index * self.num_positions + self.position

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its virtual node."""
        return self.is_last and self.index == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodes:
    """How one job's global batch is cut and distributed over any number of workers.

    micro_batch_size: the most samples of one forward and backward pass; 0: a whole virtual node.
    counts_by_rank: virtual nodes of each worker; empty: as even as possible.
    relative_sizes: of the virtual nodes; empty: all have the same size, up to one sample.
    """

    count: int
    global_batch_size: int  # samples
    micro_batch_size: int = 0
    counts_by_rank: tuple[int, ...] = ()
    relative_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert not self.counts_by_rank or sum(self.counts_by_rank) == self.count
        assert not self.relative_sizes or len(self.relative_sizes) == self.count

    def merged_by_worker(self) -> "VirtualNodes":
        """One virtual node for each worker that has some, with the samples of all of them."""
        if not self.counts_by_rank:
            return self
        sizes = tuple(size for size in self.counts_by_rank if size)
        ones = tuple(min(size, 1) for size in self.counts_by_rank)
        return replace(self, count=len(sizes), counts_by_rank=ones, relative_sizes=sizes)

    def placeable_count(self, *, is_fast: bool) -> int:
        """So many virtual nodes a placement divides; in the fast mode, where any number fits, so many equal parts."""
        return min(_PARTS_OF_FAST_JOBS, self.global_batch_size) if is_fast else self.count

    def samples(self, virtual_node: int) -> slice:
        """Its contiguous part of a global batch."""
        return slice(self._first_sample(virtual_node), self._first_sample(virtual_node + 1))

    def _first_sample(self, virtual_node: int) -> int:
        if not self.relative_sizes:
            return virtual_node * self.global_batch_size // self.count
        return sum(self.relative_sizes[:virtual_node]) * self.global_batch_size // sum(self.relative_sizes)

    def weight(self, virtual_node: int) -> float:
        """Its part of the samples: the weight of their mean in the mean over the global batch."""
        part = self.samples(virtual_node)
        return (part.stop - part.start) / self.global_batch_size

    def block(self, rank: int, world_size: int) -> range:
        """The virtual nodes of a worker; empty for a surplus worker."""
        if self.counts_by_rank:
            start = sum(self.counts_by_rank[:rank])
            return range(start, start + self.counts_by_rank[rank])
        most = min(world_size, self.count)
        if rank >= most:
            return range(0)
        return range(rank * self.count // most, (rank + 1) * self.count // most)

    def computed_by(self, rank: int, world_size: int) -> tuple[MicroBatch, ...]:
        """The micro-batches of a worker's block, in order. A surplus worker repeats a part that counts elsewhere, and
        so keeps the same state."""
        repeated = rank % self.count
        block = self.block(rank, world_size) or range(repeated, repeated + 1)
        return tuple(micro_batch for virtual_node in block for micro_batch in self.micro_batches(virtual_node))

    def micro_batches(self, virtual_node: int) -> tuple[MicroBatch, ...]:
        """Its samples in as few contiguous parts as the limit allows; sizes differ by at most one."""
        whole = self.samples(virtual_node)
        size = whole.stop - whole.start
        num_parts = -(-size // (self.micro_batch_size or size))
        bounds = [whole.start + i * size // num_parts for i in range(num_parts + 1)]
        return tuple(
            MicroBatch(
                virtual_node=virtual_node,
                index=i,
                samples=slice(start, stop),
                weight=(stop - start) / self.global_batch_size,
                is_last=stop == whole.stop,
            )
            for i, (start, stop) in enumerate(pairwise(bounds))
        )

    def divided(self, whole: MicroBatch, position: int, num_positions: int) -> MicroBatch:
        """What one worker of a gang computes of a micro-batch: one of contiguous parts as equal as possible."""
        first, size = whole.samples.start, whole.samples.stop - whole.samples.start
        start, stop = (first + at * size // num_positions for at in (position, position + 1))
        return replace(
            whole,
            samples=slice(start, stop),
            weight=(stop - start) / self.global_batch_size,
            position=position,
            num_positions=num_positions,
        )

    @property
    def are_cut(self) -> bool:
        """Whether any has several micro-batches."""
        return any(len(self.micro_batches(virtual_node)) > 1 for virtual_node in range(self.count))

    @property
    def part_sizes(self) -> list[int]:
        """The samples of each pass, on whatever worker."""
        parts = (part.samples for v in range(self.count) for part in self.micro_batches(v))
        return [part.stop - part.start for part in parts]

    @property
    def largest_micro_batch(self) -> int:
        """The most samples of one pass, on any worker."""
        return max(self.part_sizes)
