"""Which samples belong to which micro-batch in which step: a function of (seed, iteration, virtual node). Pure.

The epochs stand one behind the other, and step t takes positions [t*G, (t+1)*G) of that line. So every batch has
exactly G samples and every epoch has each sample exactly once, whatever the size of the data set: a batch may hold the
last samples of one epoch and the first of the next. A virtual node takes its contiguous slice of each batch, so the
number of workers changes who reads a sample, never when; and where a job stands in its data is one integer, the
iteration.

Within an epoch, samples are shuffled such that whoever reads them reads on: partitions change places, the line of their
samples is cut into lanes, one for each of some equal slices of the batch, and each lane is shuffled window by window. A
data set in one partition, with a window as large as itself, is shuffled as a whole.
"""
# pyright: strict

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from services.executor.worker.virtual_nodes import MicroBatch

Numbers = NDArray[np.int64]

_PARTITIONS = 1  # tells random numbers for partitions from those for windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one micro-batch reads in one step: a virtual node's samples, or a part of them."""

    iteration: int
    virtual_node: int
    micro_batch: int
    position: int  # of the first one; the others follow
    samples: tuple[int, ...]  # indices into the data set


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Samples that stand together in a lane of an epoch, and are shuffled among each other."""

    epoch: int
    lane: int
    index: int  # within the lane
    place: int  # of the first one, in the epoch's line
    size: int  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Samples that stand together in a partition."""

    partition: int
    offset: int
    size: int


class Partitions:
    """Of a data set whose samples are numbered through them. sizes: samples in each, shape (P,)."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes_P = np.array(sizes, dtype=np.int64)
        self.starts_P = np.concatenate([np.zeros(1, dtype=np.int64), self.sizes_P.cumsum()[:-1]])
        self.num_samples = int(self.sizes_P.sum())

    def __len__(self) -> int:
        return len(self.sizes_P)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """Positions in the line of all epochs, and the samples there.

    num_lanes: slices of the batch, each of which reads a contiguous piece of an epoch's line; fixed for a job's life.
    window_size: samples, of one lane. is_shuffled: else all stand as they are numbered, and a window is only what is
    read at once.
    """

    seed: int
    partitions: Partitions
    global_batch_size: int  # samples
    num_lanes: int
    window_size: int
    is_shuffled: bool = True

    def parts(self, micro_batches: Iterable[MicroBatch], iteration: int) -> list[Part]:
        """What these micro-batches read in one step."""
        batch = _batch(self, iteration)
        return [
            Part(
                iteration=iteration,
                virtual_node=each.virtual_node,
                micro_batch=each.index,
                position=iteration * len(batch) + each.samples.start,
                samples=tuple(batch[each.samples].tolist()),
            )
            for each in micro_batches
        ]

    def samples(self, position: int, end: int) -> Numbers:
        """Those at the positions [position, end), shape (end - position,)."""
        pieces = [
            self._at(window.epoch, window.place + within) for window, within in self.windows(position, end)
        ]
        return np.concatenate(pieces)

    def windows(self, position: int, end: int) -> Iterator[tuple[Window, Numbers]]:
        """Where the samples at the positions [position, end) stand, in this order: in which window, and where in it."""
        size = self.partitions.num_samples
        while position < end:
            epoch, lane = position // size, self._lane_of(position % self.global_batch_size)
            begins, ends = epoch * size, (epoch + 1) * size
            counts = [
                self._in_lane(each, ends) - self._in_lane(each, begins) for each in range(self.num_lanes)
            ]
            within_lane = self._in_lane(lane, position) - self._in_lane(lane, begins)
            index, offset = divmod(within_lane, self.window_size)
            first = index * self.window_size
            window = Window(
                epoch=epoch,
                lane=lane,
                index=index,
                place=sum(counts[:lane]) + first,
                size=min(self.window_size, counts[lane] - first),
            )
            slice_ends = position - position % self.global_batch_size + self._slice_end(lane)
            length = min(end - position, ends - position, slice_ends - position, window.size - offset)
            yield window, self._shuffled(window)[offset : offset + length]
            position += length

    def stretches(self, window: Window) -> Iterator[Stretch]:
        """What a window holds, one stretch behind the other, before it is shuffled."""
        partitions_P, ends_P, _ = self._line(window.epoch)
        place, end = window.place, window.place + window.size
        while place < end:
            slot = int(np.searchsorted(ends_P, place, side="right"))
            partition, size = int(partitions_P[slot]), min(end, int(ends_P[slot])) - place
            offset = place - int(ends_P[slot]) + int(self.partitions.sizes_P[partition])
            yield Stretch(partition=partition, offset=offset, size=size)
            place += size

    def _at(self, epoch: int, places: Numbers) -> Numbers:
        _, ends_P, shifts_P = self._line(epoch)
        return places + shifts_P[np.searchsorted(ends_P, places, side="right")]

    def _line(self, epoch: int) -> tuple[Numbers, Numbers, Numbers]:
        return _line(self.partitions, self.seed if self.is_shuffled else None, epoch)

    def _shuffled(self, window: Window) -> Numbers:
        if not self.is_shuffled:
            return np.arange(window.size)
        known = _whole if self.num_lanes == 1 else _windows
        return known(self.seed, window.epoch, window.lane, window.index, window.size)

    # --- lanes: slices of the batch ---

    def _slice_end(self, lane: int) -> int:
        return (lane + 1) * self.global_batch_size // self.num_lanes

    def _lane_of(self, within_batch: int) -> int:
        return ((within_batch + 1) * self.num_lanes - 1) // self.global_batch_size

    def _in_lane(self, lane: int, position: int) -> int:
        """How many of the positions before this one are of the lane."""
        start, end = self._slice_end(lane - 1), self._slice_end(lane)
        batches, within = divmod(position, self.global_batch_size)
        return batches * (end - start) + min(max(within - start, 0), end - start)


@lru_cache(maxsize=4)  # it is asked for when it is to be read, and when it is due
def _batch(order: SampleOrder, iteration: int) -> Numbers:
    """Of one step, shape (global_batch_size,)."""
    position = iteration * order.global_batch_size
    return order.samples(position, position + order.global_batch_size)


@lru_cache(maxsize=2)  # a batch touches at most two epochs that are shorter than it
def _line(partitions: Partitions, seed: int | None, epoch: int) -> tuple[Numbers, Numbers, Numbers]:
    """The partitions as an epoch has them, where each ends in its line, and from a place in the line to the sample
    there, all of shape (P,). seed: None: in place."""
    order_P = np.arange(len(partitions))
    if seed is not None and len(partitions) > 1:
        order_P = np.random.default_rng((seed, epoch, 0, 0, _PARTITIONS)).permutation(len(partitions))
    sizes_P = partitions.sizes_P[order_P]
    ends_P = sizes_P.cumsum()
    return order_P, ends_P, partitions.starts_P[order_P] - (ends_P - sizes_P)


def _permutation(seed: int, epoch: int, lane: int, index: int, size: int) -> Numbers:
    return np.random.default_rng((seed, epoch, lane, index)).permutation(size)


_whole = lru_cache(maxsize=2)(_permutation)  # it may be as long as the data set
_windows = lru_cache(maxsize=64)(_permutation)
