"""Which samples belong to which virtual node in which step: a function of (seed, iteration, virtual node). Pure.

The epochs' permutations stand one behind the other, and step t takes positions [t*G, (t+1)*G) of that line.
So every batch has exactly G samples and every epoch has each sample exactly once, whatever the size of the data
set: a batch may hold the last samples of one epoch and the first of the next. A virtual node takes its contiguous
slice of each batch, so the number of workers changes who reads a sample, never when; and where a job stands in its
data is one integer, the iteration.
"""
# pyright: strict

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from services.executor.worker.virtual_nodes import MicroBatch, VirtualNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one micro-batch reads in one step: a virtual node's samples, or a part of them."""

    iteration: int
    virtual_node: int
    micro_batch: int
    samples: tuple[int, ...]  # indices into the data set


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    seed: int
    dataset_size: int  # samples
    virtual_nodes: VirtualNodes

    def global_batch(self, iteration: int) -> NDArray[np.int64]:
        """Sample indices of one step, shape (global_batch_size,)."""
        position = iteration * self.virtual_nodes.global_batch_size
        end = position + self.virtual_nodes.global_batch_size
        pieces: list[NDArray[np.int64]] = []
        while position < end:
            epoch, offset = divmod(position, self.dataset_size)
            length = min(end - position, self.dataset_size - offset)
            pieces.append(_permutation(self.seed, epoch, self.dataset_size)[offset : offset + length])
            position += length
        return np.concatenate(pieces)

    def parts(self, micro_batches: Iterable[MicroBatch], iteration: int) -> list[Part]:
        """What these micro-batches read in one step."""
        batch = self.global_batch(iteration)
        return [
            Part(
                iteration=iteration,
                virtual_node=each.virtual_node,
                micro_batch=each.index,
                samples=tuple(batch[each.samples].tolist()),
            )
            for each in micro_batches
        ]


@lru_cache(maxsize=2)  # a batch touches at most two epochs that are shorter than it
def _permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(size)
