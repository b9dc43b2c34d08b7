"""Readers of the user's data set, map-style or streamed: from a part of a batch to its collated samples.

What a reader returns depends on the part only, not on the process or on earlier reads. A streamed data set can only be
read in order, so its reader keeps a window and a cursor for each lane. After a resize or a crash, a reader opens the
partition where the window begins, and draws the same random numbers.
"""

import copy
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from elasticflow.services.executor.worker.checkpoint.store import unreadable_types
from elasticflow.services.executor.worker.data.dataset import (
    OTHER_SAMPLES,
    DataSet,
    StreamBatch,
    Streamed,
    StreamMark,
    StreamOrder,
    StreamPlace,
    StreamPosition,
)
from elasticflow.services.executor.worker.data.loader_settings import set_epoch_of
from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, seed_generators, seed_of
from elasticflow.services.executor.worker.data.sample_order import Extent, Order, Part, SampleOrder, Window
from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.runtime.process.logs import log

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


# --- stream reader ------------------------------------------------------------------------------------
# Reads a stream in order, a global batch at a time, and keeps the newest two: a step may repeat, or be cut anew.
#
# All random numbers that the stream draws follow from the job's seed, the epoch and the step. A reader that begins
# within an epoch loads the stream's own state, or reads on from the start of the epoch, and then compares the checksum.

MARK_EVERY = 100  # steps
_KEPT = 2  # batches
_REPORT_EVERY_S = 1.0  # on a long way
_FIRST, _OTHERS = 0, 1  # samples of a step: its first one is read together with the last one of the step before


@dataclass(slots=True, kw_only=True)
class _Opened:
    """An epoch of the stream, read up to the sample `ahead`, whose position is that of the reader."""

    samples: Iterator[Any]
    iterable: Any
    epoch: int
    epoch_start: int
    position: int  # samples of all epochs before `ahead`
    ahead: Any
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    samples: list[Any]
    before: StreamPosition
    after: StreamPosition
    mark: StreamMark | None


class UnsizedReader:
    """A `Reader`, which a StreamPlace leads to that place. mark_every: steps between two states of the stream."""

    def __init__(
        self,
        iterable: Any,
        order: StreamOrder,
        collate: Callable[[list[Any]], Any],
        *,
        mark_every: int = MARK_EVERY,
    ) -> None:
        self._iterable = iterable
        self._order = order
        self._collate = collate
        self._mark_every = mark_every
        self._has_state = _has_state(iterable)
        self.origin = StreamPlace(position=StreamPosition())  # where to begin, as soon as something is read
        self._opened: _Opened | None = None
        self._mark: StreamMark | None = None  # of the position, if the stream has told its state there
        self._batches: dict[int, _Batch] = {}  # by iteration
        self._came_by: StreamMark | None = None
        self._refused: StreamMark | None = None  # led to other samples

    def __call__(self, request: Part | StreamPlace) -> Any:
        """Return the StreamBatch of a part, or whether a place is reached; if not, ask again. Raises TrainingFailed."""
        if isinstance(request, StreamPlace):
            self.origin = request
            return self._approach(request)
        batch = self._batch(request.iteration)
        start = request.position - request.iteration * self._order.global_batch_size
        seed_for(request, self._order.seed)
        collated = self._collate(batch.samples[start : start + len(request.samples)])
        return StreamBatch(collated, batch.after, batch.mark)

    def process_key(self, part: Part) -> int:
        """One process reads all parts: any other would read the stream once more."""
        return 0

    def _batch(self, iteration: int) -> _Batch:
        if iteration not in self._batches:
            if self._opened is None or iteration * self._order.global_batch_size < self._opened.position:
                is_beyond = self.origin.position.iteration > iteration
                place = StreamPlace(position=StreamPosition()) if is_beyond else self.origin
                while not self._approach(place):
                    pass
            while iteration not in self._batches:
                self._read_batch()
        return self._batches[iteration]

    # --- to a place ---

    def _approach(self, place: StreamPlace) -> bool:
        """Read towards it for a while. Returns whether it is reached."""
        target, until_s = place.position, time.monotonic() + _REPORT_EVERY_S
        if not self._leads_to(place):
            self._set_out(place)
        try:
            while (here := self._boundary(target)) is None:
                if time.monotonic() > until_s:
                    return False
                self._read_batch()
        except Exception as error:  # whatever the user's code raises in a state that is not its own
            if self._came_by is None:
                raise
            return self._refuse(self._came_by, repr(error))
        is_same_epoch = (here.epoch, here.epoch_start) == (target.epoch, target.epoch_start)
        if is_same_epoch and target.checksum in (0, here.checksum):
            return True
        if self._came_by is None:
            raise TrainingFailed(OTHER_SAMPLES)
        return self._refuse(self._came_by, "other samples follow")

    def _refuse(self, mark: StreamMark, why: str) -> Literal[False]:
        """The way leads from the start of the epoch then."""
        log.info("stream_state_not_exact", iteration=mark.position.iteration, reason=why)
        self._refused, self._opened = mark, None
        self._batches.clear()
        return False

    def _leads_to(self, place: StreamPlace) -> bool:
        """Whether reading on is the shortest way."""
        if place.position.iteration in self._batches:
            return True
        if (opened := self._opened) is None or opened.epoch != place.position.epoch:
            return False
        batch_size, mark = self._order.global_batch_size, place.mark
        is_shorter_by_mark = (
            mark not in (None, self._refused) and mark.position.iteration * batch_size > opened.position
        )
        return opened.position <= place.position.iteration * batch_size and not is_shorter_by_mark

    def _boundary(self, target: StreamPosition) -> StreamPosition | None:
        """What is known at the target's iteration, or where the reader is if it has left the target's epoch."""
        if known := self._batches.get(target.iteration):
            return known.before
        here = self._position()
        is_there = self._now.position == target.iteration * self._order.global_batch_size
        return here if is_there or here.epoch > target.epoch else None

    def _set_out(self, place: StreamPlace) -> None:
        self._batches.clear()
        self._mark, self._came_by = None, None
        if place.mark is not None and place.mark != self._refused and self._open_at(place.mark):
            self._came_by = place.mark
        else:
            self._open(place.position.epoch, place.position.epoch_start)

    def _open_at(self, mark: StreamMark) -> bool:
        """Load the stream's own state into a copy of the stream, and open it. Returns whether that is possible."""
        at, batch_size = mark.position, self._order.global_batch_size
        try:
            iterable = self._unread(at.epoch)
            iterable.load_state_dict(decode_value(mark.state))
            samples = iter(iterable)
            self._seed(at.iteration, _FIRST, at.epoch)
            ahead = next(samples)
        except Exception as error:  # whatever the user's code raises
            return self._refuse(mark, repr(error))
        self._opened = _Opened(
            samples=samples,
            iterable=iterable,
            epoch=at.epoch,
            epoch_start=at.epoch_start,
            position=at.iteration * batch_size,
            ahead=ahead,
            checksum=at.checksum,
        )
        return True

    # --- reading ---

    @property
    def _now(self) -> _Opened:
        assert self._opened is not None, "an epoch is opened before anything is read"
        return self._opened

    def _open(self, epoch: int, start: int) -> None:
        """Begin an epoch. Its first sample is read at once: a generator draws numbers only then."""
        iterable = self._unread(epoch)
        samples = iter(iterable)
        ahead = next(samples, _END)
        if ahead is _END:
            raise TrainingFailed(
                f"the data set has no samples in epoch {epoch}: let each call of its __iter__ begin again"
            )
        self._opened = _Opened(
            samples=samples,
            iterable=iterable,
            epoch=epoch,
            epoch_start=start,
            position=start,
            ahead=ahead,
            checksum=checksum_of(ahead, 0),
        )

    def _read_batch(self) -> None:
        """Read up to the next step boundary, and the sample behind it: whether an epoch ends there is then known."""
        position, batch_size = self._now.position, self._order.global_batch_size
        iteration, before, mark, samples = position // batch_size, self._position(), self._mark, []
        end, is_whole = (iteration + 1) * batch_size, position % batch_size == 0
        self._seed(iteration, _OTHERS)
        while self._now.position < end:
            samples.append(self._take(is_covered=self._is_marked(iteration)))
            if self._now.position < end and not self._read_ahead():
                self._seed(iteration, _OTHERS)
        state = self._told_state() if self._is_marked(iteration + 1) else None
        self._seed(iteration + 1, _FIRST)
        if self._read_ahead():
            self._now.checksum = checksum_of(self._now.ahead, self._now.checksum)
        else:
            state = None  # the start of an epoch needs none
        after = self._position()
        self._mark = None if state is None else StreamMark(position=after, state=state)
        if is_whole:
            self._batches[iteration] = _Batch(samples=samples, before=before, after=after, mark=mark)
            for old in sorted(self._batches)[:-_KEPT]:
                del self._batches[old]

    def _take(self, *, is_covered: bool) -> Any:
        now = self._now
        sample, now.ahead = now.ahead, _END
        now.position += 1
        if is_covered:
            now.checksum = checksum_of(sample, now.checksum)
        return sample

    def _read_ahead(self) -> bool:
        """The next sample. Returns whether it is one of the same epoch."""
        now = self._now
        now.ahead = next(now.samples, _END)
        if now.ahead is not _END:
            return True
        size, batch_size = now.position - now.epoch_start, self._order.global_batch_size
        if size < batch_size:
            raise TrainingFailed(
                f"global_batch_size: {batch_size} is more than the {size} samples of the data set's epoch {now.epoch}; "
                "lower it"
            )
        self._open(now.epoch + 1, now.position)
        return False

    def _position(self) -> StreamPosition:
        now = self._now
        return StreamPosition(
            iteration=now.position // self._order.global_batch_size,
            epoch=now.epoch,
            epoch_start=now.epoch_start,
            checksum=now.checksum,
        )

    def _is_marked(self, iteration: int) -> bool:
        """Whether the stream tells its state before this step. The checksum then covers all samples of the step: one
        that continues with others, for example because it has lost what its shuffling held, is recognized."""
        return self._has_state and iteration > 0 and iteration % self._mark_every == 0

    def _told_state(self) -> bytes | None:
        try:
            state = self._now.iterable.state_dict()
            if unreadable_types(state):
                raise TypeError(f"it holds {', '.join(sorted(unreadable_types(state)))}")
            return encode_value(state)
        except Exception as error:  # whatever the user's code raises
            log.info("stream_state_not_kept", error=repr(error))
            return None

    def _unread(self, epoch: int) -> Any:
        """The stream before it is opened; one that has a state in a copy, since its state may outlive an opening."""
        iterable = copy.deepcopy(self._iterable) if self._has_state else self._iterable
        if callable(set_epoch := getattr(iterable, "set_epoch", None)):
            set_epoch(epoch)
        seed_generators(seed_of(self._order.seed, SeedPhase.READ, iteration=epoch))
        return iterable

    def _seed(self, iteration: int, which: int, epoch: int | None = None) -> None:
        epoch = self._now.epoch if epoch is None else epoch
        seed_generators(
            seed_of(self._order.seed, SeedPhase.READ, iteration=iteration, virtual_node=which, micro_batch=epoch)
        )


def _has_state(iterable: Any) -> bool:
    """Whether it can tell and load its state, in a copy of it."""
    if not all(callable(getattr(iterable, name, None)) for name in ("state_dict", "load_state_dict")):
        return False
    try:
        copy.deepcopy(iterable)
    except Exception as error:  # whatever the user's objects raise
        log.info("stream_not_copied", error=repr(error))
        return False
    return True


def checksum_of(sample: Any, before: int) -> int:
    """32 bits of `before` and the sample's tensors, arrays, texts and numbers. Other objects count by their type."""
    for leaf in tree_leaves(sample):
        before = zlib.crc32(_bytes_of(leaf), before)
    return before


def _bytes_of(leaf: Any) -> bytes:
    match leaf:
        case torch.Tensor() if leaf.layout is torch.strided and not leaf.is_quantized:
            plain = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous()
            return plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        case np.ndarray() if leaf.dtype != object:
            return leaf.tobytes()
        case bytes() | bytearray():
            return bytes(leaf)
        case None | bool() | int() | float() | complex() | str() | np.generic():
            return repr(leaf).encode("utf-8", "surrogatepass")
        case _ if callable(getattr(leaf, "tobytes", None)):  # an image
            return leaf.tobytes()
        case _:
            return type(leaf).__qualname__.encode()
