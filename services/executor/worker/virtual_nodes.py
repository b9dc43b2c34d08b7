"""Who carries what: a job's virtual nodes, their samples and weights, and the seeds of their random numbers. Pure.

A global batch is cut into V parts, one for each virtual node, and V is fixed for the life of a job. Workers carry
contiguous blocks of virtual nodes, so their number decides who computes a part, never what is computed
(VirtualFlow, section 3). What a GPU's memory cannot hold at once is cut again, into micro-batches; a virtual node stays
whole on one worker, and adds its micro-batches up one after another.
"""
# pyright: strict

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np

_MOST_BY_DEFAULT = 8  # each one is a forward and a backward pass of its own: more of them cost more


def default_count(global_batch_size: int) -> int:
    """The largest power of two up to 8 and to the batch."""
    return 1 << (min(global_batch_size, _MOST_BY_DEFAULT).bit_length() - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward and backward pass takes: a virtual node's samples, or a part of them."""

    virtual_node: int
    index: int  # within the virtual node
    samples: slice  # of the global batch
    weight: float  # its part of the global batch: what a mean over its samples counts
    is_last: bool  # of its virtual node

    @property
    def is_whole(self) -> bool:
        """All of its virtual node."""
        return self.is_last and self.index == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualNodes:
    """How one job's global batch is cut, and dealt out to any number of workers.

    micro_batch_size: samples that one forward and backward pass takes at most; 0: a whole virtual node.
    """

    count: int
    global_batch_size: int  # samples
    micro_batch_size: int = 0

    def samples(self, virtual_node: int) -> slice:
        """Its contiguous part of a global batch; sizes differ by at most one."""
        return slice(
            virtual_node * self.global_batch_size // self.count,
            (virtual_node + 1) * self.global_batch_size // self.count,
        )

    def weight(self, virtual_node: int) -> float:
        """Its part of the samples: what a mean over them counts in the mean over the global batch."""
        part = self.samples(virtual_node)
        return (part.stop - part.start) / self.global_batch_size

    def block(self, rank: int, world_size: int) -> range:
        """The virtual nodes that a worker answers for; empty for those that are more than there are parts."""
        most = min(world_size, self.count)
        if rank >= most:
            return range(0)
        return range(rank * self.count // most, (rank + 1) * self.count // most)

    def computed_by(self, rank: int, world_size: int) -> tuple[MicroBatch, ...]:
        """Those of its block, in order. A worker too many repeats a part that counts elsewhere, and so keeps the same
        state as all."""
        repeated = rank % self.count
        block = self.block(rank, world_size) or range(repeated, repeated + 1)
        return tuple(
            micro_batch for virtual_node in block for micro_batch in self.micro_batches(virtual_node)
        )

    def micro_batches(self, virtual_node: int) -> tuple[MicroBatch, ...]:
        """Its samples in contiguous parts, as few as are small enough; sizes differ by at most one."""
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

    @property
    def are_cut(self) -> bool:
        """Some of them into several micro-batches."""
        return any(len(self.micro_batches(virtual_node)) > 1 for virtual_node in range(self.count))

    @property
    def largest_micro_batch(self) -> int:
        """Samples that one pass takes at most, on any worker."""
        parts = (part.samples for v in range(self.count) for part in self.micro_batches(v))
        return max(part.stop - part.start for part in parts)


class Phase(IntEnum):
    """What random numbers are drawn for. Phases from AFTER_MEETING on are counted: one for each meeting."""

    INITIALIZE = 0
    LOAD = 1
    TRAIN = 2
    EVALUATE = 3
    READ = 4  # what is read in order: windows and partitions, not parts
    AFTER_MEETING = 5


EVERYONE = -1  # instead of a virtual node: all of them draw the same


def seed_of(
    job_seed: int, phase: int, *, iteration: int = 0, virtual_node: int = EVERYONE, micro_batch: int = 0
) -> int:
    """32 bits for the generators, independent of those for any other arguments. All are below 2^64."""
    key = (job_seed, phase, iteration, virtual_node + 1, micro_batch)
    words = [
        word for number in key for word in (number & 0xFFFFFFFF, number >> 32)
    ]  # so many for any numbers
    return int(np.random.SeedSequence(words).generate_state(1, np.uint32)[0])
