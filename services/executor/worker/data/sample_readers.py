"""Readers of the user's data set, map-style or streamed: from a part of a batch to its collated samples.

What a reader returns depends on the part only, not on the process or on earlier reads. A streamed data set can only be
read in order, so its reader keeps a window and a cursor for each lane. After a resize or a crash, a reader opens the
partition where the window begins, and draws the same random numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Protocol

from elasticflow.services.executor.worker.data.dataset import DataSet, Streamed
from elasticflow.services.executor.worker.data.loader_settings import set_epoch_of
from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_generators, seed_of
from elasticflow.services.executor.worker.data.sample_order import Extent, Order, Part, SampleOrder, Window
from elasticflow.services.executor.worker.interface import TrainingFailed

_END = object()


class SampleReader(Protocol):
    def __call__(self, part: Any, /) -> Any: ...

    def process_key(self, part: Part) -> int:
        """Modulo the number of reader processes: which of them reads the part."""
        ...


def reader_of(dataset: DataSet, order: Order, collate: Callable[[list[Any]], Any]) -> SampleReader:
    if dataset.streamed is not None:
        assert isinstance(order, SampleOrder), "no sampler draws from a stream"
        return StreamReader(dataset.streamed, order, collate)
    return MapStyleReader(dataset.samples, collate, order)


class MapStyleReader:
    """Random numbers drawn while a part is read, for example to augment it, depend on the part. A data set with
    set_epoch() is told the epoch before."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], order: Order) -> None:
        self._dataset = dataset
        self._collate = collate
        self._order = order
        self._set_epoch = set_epoch_of(dataset)

    def __call__(self, part: Part) -> Any:
        if self._set_epoch is not None:
            self._set_epoch(self._order.epoch(part.iteration))
        seed_for(part, self._order.seed)
        if hasattr(self._dataset, "__getitems__"):  # as torch's own fetcher does
            return self._collate(self._dataset.__getitems__(list(part.samples)))
        return self._collate([self._dataset[index] for index in part.samples])

    def process_key(self, part: Part) -> int:
        """Spreads the parts of one step over processes, and those of many steps."""
        return part.iteration + part.virtual_node + part.micro_batch


@dataclass(slots=True, kw_only=True)
class _Cursor:
    """A position in a partition, in one epoch."""

    epoch: int
    partition: int
    offset: int  # of the next sample
    samples: Iterator[Any]


class StreamReader:
    """Holds one window for each lane that it has read from."""

    def __init__(self, streamed: Streamed, order: SampleOrder, collate: Callable[[list[Any]], Any]) -> None:
        self._streamed = streamed
        self._order = order
        self._collate = collate
        self._cursors: dict[int, _Cursor] = {}  # by lane
        self._windows: dict[int, tuple[Window, list[Any]]] = {}  # with their samples, by lane

    def __call__(self, part: Part) -> Any:
        samples: list[Any] = []
        for window, indices in self._order.windows(part.position, part.position + len(part.samples)):
            in_window = self._samples_of(window)
            samples += [in_window[index] for index in indices]
        seed_for(part, self._order.seed)
        return self._collate(samples)

    def process_key(self, part: Part) -> int:
        """One process reads all parts of a virtual node, and so continues where it was."""
        return part.virtual_node

    def _samples_of(self, window: Window) -> list[Any]:
        known, samples = self._windows.pop(window.lane, (None, []))
        if known != window:
            samples = self._read(window)
        self._windows[window.lane] = window, samples
        return samples

    def _read(self, window: Window) -> list[Any]:
        first, *more = self._order.extents(window)
        cursor = self._cursor_at(window, first)
        seed_generators(
            seed_of(
                self._order.seed,
                SeedPhase.READ,
                iteration=window.epoch,
                virtual_node=window.lane,
                micro_batch=window.index,
            )
        )
        samples = self._next(cursor, first.size)
        for extent in more:
            samples += self._next(self._cursor_at(window, extent), extent.size)
        return samples

    def _cursor_at(self, window: Window, extent: Extent) -> _Cursor:
        cursor = self._cursors.get(window.lane)
        partition = (window.epoch, extent.partition)
        if cursor is None or (cursor.epoch, cursor.partition) != partition or cursor.offset > extent.offset:
            cursor = self._cursors[window.lane] = self._open(window.epoch, extent)
        self._next(cursor, extent.offset - cursor.offset)
        return cursor

    def _open(self, epoch: int, extent: Extent) -> _Cursor:
        """Opens the partition one sample early, and reads that sample.

        A generator starts with its first sample. What it draws then, for example to shuffle files, must be the same on
        all workers, and must not change what is drawn for the extent.
        """
        seed_generators(seed_of(self._order.seed, SeedPhase.READ, iteration=epoch, micro_batch=extent.partition))
        start = max(extent.offset - 1, 0)
        samples = iter(self._streamed.read_partition(extent.partition, start))
        first = list(islice(samples, 1))
        return _Cursor(epoch=epoch, partition=extent.partition, offset=start, samples=chain(first, samples))

    def _next(self, cursor: _Cursor, count: int) -> list[Any]:
        """Raises TrainingFailed if the partition's size is wrong."""
        samples = list(islice(cursor.samples, count))
        cursor.offset += len(samples)
        size = int(self._order.partitions.sizes_P[cursor.partition])
        if len(samples) < count:
            raise TrainingFailed(
                f"partition {cursor.partition} of the data set ended after {cursor.offset} samples, but it should have "
                f"{size}: correct partition_sizes or len(), or what the data set reads"
            )
        if count and cursor.offset == size and next(cursor.samples, _END) is not _END:
            raise TrainingFailed(
                f"partition {cursor.partition} of the data set has more than the {size} samples that it should have: "
                "correct partition_sizes or len(), or what the data set reads"
            )
        return samples


def seed_for(part: Part, seed: int) -> None:
    """Seed the generators before a part is collated, or read by index."""
    seed_generators(
        seed_of(
            seed,
            SeedPhase.LOAD,
            iteration=part.iteration,
            virtual_node=part.virtual_node,
            micro_batch=part.micro_batch,
        )
    )
