"""Reads data sets that know only how to go on: a window at a time, with a cursor for each lane.

What a window holds depends on nothing that was read before: whoever comes to it anew, after a resize or a crash, opens
its partition where the window begins, and draws the same random numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from services.executor.worker.data_order import Part, SampleOrder, Stretch, Window
from services.executor.worker.data_set import DataSet, Streamed
from services.executor.worker.loading import Reader, SampleReader, seed_generators
from services.executor.worker.training_function import TrainingFailed
from services.executor.worker.virtual_nodes import Phase, seed_of

_END = object()


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """In a partition, in one epoch."""

    epoch: int
    partition: int
    offset: int  # of the next sample
    samples: Iterator[Any]


class StreamReader:
    """Of parts; it holds one window for each lane that it has read from."""

    def __init__(self, streamed: Streamed, order: SampleOrder, collate: Callable[[list[Any]], Any]) -> None:
        self._streamed = streamed
        self._order = order
        self._collate = collate
        self._cursors: dict[int, _Cursor] = {}  # by lane
        self._held: dict[int, tuple[Window, list[Any]]] = {}  # by lane

    def __call__(self, part: Part) -> Any:
        samples: list[Any] = []
        for window, indices in self._order.windows(part.position, part.position + len(part.samples)):
            held = self._samples_of(window)
            samples += [held[index] for index in indices]
        seed_generators(
            seed_of(
                self._order.seed,
                Phase.LOAD,
                iteration=part.iteration,
                virtual_node=part.virtual_node,
                micro_batch=part.micro_batch,
            )
        )
        return self._collate(samples)

    def turn(self, part: Part) -> int:
        """A virtual node reads on where it was, so it stays with one process."""
        return part.virtual_node

    def _samples_of(self, window: Window) -> list[Any]:
        known, samples = self._held.pop(window.lane, (None, []))
        if known != window:
            samples = self._read(window)
        self._held[window.lane] = window, samples
        return samples

    def _read(self, window: Window) -> list[Any]:
        first, *more = self._order.stretches(window)
        cursor = self._cursor_at(window, first)
        seed_generators(
            seed_of(
                self._order.seed,
                Phase.READ,
                iteration=window.epoch,
                virtual_node=window.lane,
                micro_batch=window.index,
            )
        )
        samples = self._next(cursor, first.size)
        for stretch in more:
            samples += self._next(self._cursor_at(window, stretch), stretch.size)
        return samples

    def _cursor_at(self, window: Window, stretch: Stretch) -> _Cursor:
        cursor = self._cursors.get(window.lane)
        where = (window.epoch, stretch.partition)
        if cursor is None or (cursor.epoch, cursor.partition) != where or cursor.offset > stretch.offset:
            cursor = self._cursors[window.lane] = self._opened(window.epoch, stretch)
        self._next(cursor, stretch.offset - cursor.offset)
        return cursor

    def _opened(self, epoch: int, stretch: Stretch) -> _Cursor:
        """One sample early: a generator begins with its first sample, and what it draws then, e.g. to shuffle files,
        must be the same for all, and not what is drawn for the stretch."""
        seed_generators(seed_of(self._order.seed, Phase.READ, iteration=epoch, micro_batch=stretch.partition))
        start = max(stretch.offset - 1, 0)
        samples = iter(self._streamed.read_partition(stretch.partition, start))
        first = list(islice(samples, 1))
        return _Cursor(epoch=epoch, partition=stretch.partition, offset=start, samples=chain(first, samples))

    def _next(self, cursor: _Cursor, count: int) -> list[Any]:
        """Raises TrainingFailed where the partition holds other than it should."""
        samples = list(islice(cursor.samples, count))
        cursor.offset += len(samples)
        size = int(self._order.partitions.sizes_P[cursor.partition])
        if len(samples) < count:
            raise TrainingFailed(
                f"partition {cursor.partition} of the data set ended after {cursor.offset} samples, but it should have "
                f"{size}: correct partition_sizes or len(), or what is read"
            )
        if count and cursor.offset == size and next(cursor.samples, _END) is not _END:
            raise TrainingFailed(
                f"partition {cursor.partition} of the data set has more than the {size} samples that it should have: "
                "correct partition_sizes or len(), or what is read"
            )
        return samples


def reader_of(dataset: DataSet, order: SampleOrder, collate: Callable[[list[Any]], Any]) -> Reader:
    """Whatever kind of data set it is."""
    if dataset.streamed is not None:
        return StreamReader(dataset.streamed, order, collate)
    return SampleReader(dataset.samples, collate, order.seed)
