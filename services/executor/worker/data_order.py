"""Which samples belong to which step: a function of (seed, iteration) and nothing else.

The epochs' permutations stand one behind the other, and step t takes positions [t*G, (t+1)*G) of that line.
So every batch has exactly G samples and every epoch has each sample exactly once, whatever the size of the data
set: a batch may hold the last samples of one epoch and the first of the next. A worker takes its contiguous
slice of each batch, so the number of workers changes who reads a sample, never when.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    seed: int
    dataset_size: int  # samples
    global_batch_size: int

    def global_batch(self, iteration: int) -> NDArray[np.int64]:
        """Sample indices of one step, shape (global_batch_size,)."""
        position = iteration * self.global_batch_size
        end = position + self.global_batch_size
        pieces: list[NDArray[np.int64]] = []
        while position < end:
            epoch, offset = divmod(position, self.dataset_size)
            length = min(end - position, self.dataset_size - offset)
            pieces.append(_permutation(self.seed, epoch, self.dataset_size)[offset : offset + length])
            position += length
        return np.concatenate(pieces)

    def local_batches(self, local: slice, *, iteration: int) -> Iterator[list[int]]:
        """This worker's part of each step from `iteration` on, without end."""
        while True:
            yield self.global_batch(iteration)[local].tolist()
            iteration += 1


def local_slice(global_batch_size: int, *, rank: int, world_size: int) -> slice:
    """Rank's contiguous part of a batch; sizes differ by at most one."""
    return slice(
        rank * global_batch_size // world_size,
        (rank + 1) * global_batch_size // world_size,
    )


@lru_cache(maxsize=2)  # a batch touches at most two epochs that are shorter than it
def _permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(size)
