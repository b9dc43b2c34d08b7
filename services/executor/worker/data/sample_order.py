"""The samples of each micro-batch in each step: a function of (seed, iteration, virtual node). Pure.

All epochs form one sequence, and step t takes its positions [t*G, (t+1)*G). So every batch has exactly G samples, and
every epoch has each sample exactly once, for any size of the data set: a batch may hold the last samples of one epoch
and the first of the next. A virtual node takes its contiguous slice of each batch. The number of workers changes which
worker reads a sample, but not in which step. One integer, the iteration, is the position of a job in its data.

Within an epoch, shuffling keeps reads sequential. The partitions are permuted, their samples are cut into lanes, one
for each of several equal slices of the batch, and each lane is shuffled window by window. A data set in one partition
with a window of the same size is shuffled as a whole. A user's sampler may draw the order of an epoch instead, and an
epoch may leave out the samples behind its last whole batch.
"""
# pyright: strict

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch

Numbers = NDArray[np.int64]

_PARTITIONS = 1  # separates random numbers for partitions from those for windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The samples of one micro-batch in one step: those of a virtual node, or a part of them."""

    iteration: int
    virtual_node: int
    micro_batch: int
    position: int  # of the first sample; the others follow
    samples: tuple[int, ...]  # indices into the data set


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Adjacent samples of a lane in an epoch, which are shuffled among each other."""

    epoch: int
    lane: int
    index: int  # within the lane
    start: int  # position of the first sample in the epoch
    size: int  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Adjacent samples of a partition."""

    partition: int
    offset: int
    size: int


class Partitions:
    """Partitions of a data set, whose samples are numbered through them. sizes: samples in each, shape (P,)."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes_P = np.array(sizes, dtype=np.int64)
        self.starts_P = np.concatenate([np.zeros(1, dtype=np.int64), self.sizes_P.cumsum()[:-1]])
        self.num_samples = int(self.sizes_P.sum())

    def __len__(self) -> int:
        return len(self.sizes_P)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """How steps cut the sequence of all epochs. size: samples of one.

    drop_last: an epoch consists of whole batches, and the rest of it is not read.
    """

    size: int
    global_batch_size: int  # samples
    drop_last: bool = False

    def positions(self, iteration: int) -> range:
        """The positions of the samples of one step."""
        start = iteration * self.global_batch_size
        if self.drop_last:
            epoch, step = divmod(iteration, self.size // self.global_batch_size)
            start = epoch * self.size + step * self.global_batch_size
        return range(start, start + self.global_batch_size)

    def number(self, iteration: int) -> int:
        """The number of the epoch in which a step begins."""
        return self.positions(iteration).start // self.size

    def iterations(self, epochs: int) -> int:
        """Steps that begin in so many epochs."""
        if self.drop_last:
            return epochs * (self.size // self.global_batch_size)
        return -(-epochs * self.size // self.global_batch_size)

    def done(self, iteration: int) -> float:
        """Epochs in so many steps."""
        if self.drop_last:
            return iteration / (self.size // self.global_batch_size)
        return iteration * self.global_batch_size / self.size


def part_of(micro_batch: MicroBatch, iteration: int, first: int, samples: Iterable[int]) -> Part:
    """first: position of the first sample of the step. samples: those of the micro-batch."""
    return Part(
        iteration=iteration,
        virtual_node=micro_batch.virtual_node,
        micro_batch=micro_batch.index,
        position=first + micro_batch.samples.start,
        samples=tuple(samples),
    )


class Order(ABC):
    """The samples at the positions of the sequence of all epochs. Equal orders have equal samples."""

    seed: int

    @abstractmethod
    def positions(self, iteration: int) -> range:
        """The positions of the samples of one step."""

    @abstractmethod
    def epoch(self, iteration: int) -> int:
        """The epoch in which a step begins."""

    @abstractmethod
    def samples(self, position: int, end: int) -> Numbers:
        """The samples at the positions [position, end), shape (end - position,)."""

    def parts(self, micro_batches: Iterable[MicroBatch], iteration: int) -> list[Part]:
        """What these micro-batches read in one step."""
        first, batch = self.positions(iteration).start, _batch(self, iteration)
        return [part_of(each, iteration, first, batch[each.samples].tolist()) for each in micro_batches]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnOrder(Order):
    """The order that a sampler draws. draw: from an epoch's number to its samples, shape (epochs.size,), the same in
    each call."""

    seed: int
    epochs: Epochs
    draw: Callable[[int], Numbers]

    def positions(self, iteration: int) -> range:
        return self.epochs.positions(iteration)

    def epoch(self, iteration: int) -> int:
        return self.epochs.number(iteration)

    def samples(self, position: int, end: int) -> Numbers:
        pieces: list[Numbers] = []
        while position < end:
            epoch, within = divmod(position, self.epochs.size)
            pieces.append(self.draw(epoch)[within : within + end - position])
            position += len(pieces[-1])
        return np.concatenate(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder(Order):
    """The order of the data set, shuffled or not.

    num_lanes: slices of the batch, each of which reads a contiguous piece of an epoch; fixed for a job's life.
    window_size: samples of one lane. is_shuffled: False keeps the numbering; a window is then what is read at once.
    """

    seed: int
    partitions: Partitions
    global_batch_size: int  # samples
    num_lanes: int
    window_size: int
    is_shuffled: bool = True
    drop_last: bool = False  # see Epochs

    @property
    def epochs(self) -> Epochs:
        size = self.partitions.num_samples
        return Epochs(size=size, global_batch_size=self.global_batch_size, drop_last=self.drop_last)

    def positions(self, iteration: int) -> range:
        return self.epochs.positions(iteration)

    def epoch(self, iteration: int) -> int:
        return self.epochs.number(iteration)

    def samples(self, position: int, end: int) -> Numbers:
        pieces = [
            self._samples_at(window.epoch, window.start + within) for window, within in self.windows(position, end)
        ]
        return np.concatenate(pieces)

    def windows(self, position: int, end: int) -> Iterator[tuple[Window, Numbers]]:
        """The windows of the samples at the positions [position, end), in this order, and the indices within each
        window."""
        size = self.partitions.num_samples
        while position < end:
            epoch, lane = position // size, self._lane_of(position % self.global_batch_size)
            begins, ends = epoch * size, (epoch + 1) * size
            counts = [self._in_lane(each, ends) - self._in_lane(each, begins) for each in range(self.num_lanes)]
            within_lane = self._in_lane(lane, position) - self._in_lane(lane, begins)
            index, offset = divmod(within_lane, self.window_size)
            first = index * self.window_size
            window = Window(
                epoch=epoch,
                lane=lane,
                index=index,
                start=sum(counts[:lane]) + first,
                size=min(self.window_size, counts[lane] - first),
            )
            slice_ends = position - position % self.global_batch_size + self._slice_end(lane)
            length = min(end - position, ends - position, slice_ends - position, window.size - offset)
            yield window, self._shuffled(window)[offset : offset + length]
            position += length

    def extents(self, window: Window) -> Iterator[Extent]:
        """The contents of a window in order, before it is shuffled."""
        partitions_P, ends_P, _ = self._line(window.epoch)
        position, end = window.start, window.start + window.size
        while position < end:
            slot = int(np.searchsorted(ends_P, position, side="right"))
            partition, size = int(partitions_P[slot]), min(end, int(ends_P[slot])) - position
            offset = position - int(ends_P[slot]) + int(self.partitions.sizes_P[partition])
            yield Extent(partition=partition, offset=offset, size=size)
            position += size

    def _samples_at(self, epoch: int, places: Numbers) -> Numbers:
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
        """The number of earlier positions that belong to the lane."""
        start, end = self._slice_end(lane - 1), self._slice_end(lane)
        batches, within = divmod(position, self.global_batch_size)
        return batches * (end - start) + min(max(within - start, 0), end - start)


@lru_cache(maxsize=4)  # one use begins the reading, another takes the batch
def _batch(order: Order, iteration: int) -> Numbers:
    """Samples of one step, shape (global_batch_size,)."""
    positions = order.positions(iteration)
    return order.samples(positions.start, positions.stop)


@lru_cache(maxsize=2)  # a batch touches at most two epochs that are shorter than it
def _line(partitions: Partitions, seed: int | None, epoch: int) -> tuple[Numbers, Numbers, Numbers]:
    """The partitions in an epoch's order, the end of each in the epoch, and the offset from a position in the epoch to
    the sample there, all of shape (P,). seed: None keeps the order."""
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
