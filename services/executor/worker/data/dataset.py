"""The user's data set as the worker sees it: the number of samples, their partitions, and how they are read.

Map-style: `len()` and `[]`, and optionally `partition_sizes`, so that reads stay within few partitions. Streamed:
`partition_sizes` and `read_partition(partition, start)`, which iterates over samples from an offset on; or any iterable
with a `len()`, such as a torch IterableDataset, which is one partition. An iterable without a length is a stream.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

from torch.utils.data import DataLoader, IterableDataset

from elasticflow.services.executor.worker.data.loader_settings import LoaderSettings, SamplerDraws
from elasticflow.services.executor.worker.data.sample_order import (
    DrawnOrder,
    Epochs,
    Order,
    Part,
    Partitions,
    SampleOrder,
    part_of,
)
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch, default_count
from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.interface import TrainingFailed, TrainingFunction
from elasticflow.shared.messages.job_spec import JobSpec

# --- data sets without a length -----------------------------------------------------------------------
# Streams: data sets without a length. Sample k of a stream has one place, in global batch k // B, for any workers.
#
# Its epochs follow each other without a gap, as those of other data do, but where one ends shows only when it is read.
# So the position of a job in a stream is more than its iteration, and is a part of the job's state. Its checksum finds
# a stream that gives other samples to another worker, or after a restart.

_PLACE = "stream place"
_KEPT = 3  # positions, beside that of the first step: the state may be that of this boundary, or of one beside it

OTHER_SAMPLES = (
    "the data set gave other samples when it was opened again, here or in another process: let it read the same in "
    "each, with a seed for its shuffling and for a generator of its own. If its order depends on the epoch, take that "
    "from set_epoch(epoch), not from a counter. Do not divide it among workers"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The boundary before a step.

    epoch: of the step's first sample. epoch_start: samples before this epoch. checksum: of the first samples of this
    epoch and of each step in it, the present one included; 0 if unknown.
    """

    iteration: int = 0
    epoch: int = 0
    epoch_start: int = 0
    checksum: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMark:
    """What a stream said by `state_dict()` at a step boundary. state: encoded, so that no copy to a device moves it."""

    position: StreamPosition
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlace:
    """A position, and how to come there. mark: at an earlier one of the same epoch; None: from the epoch's start."""

    position: StreamPosition
    mark: StreamMark | None = None


class StreamBatch(NamedTuple):
    """The batch of a part. after: the boundary behind its step. mark: at the one before it, if the stream has some."""

    batch: Any
    after: StreamPosition
    mark: StreamMark | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOrder:
    """The order of the stream. The samples of a part are numbered through all epochs."""

    seed: int
    global_batch_size: int  # samples

    def parts(self, micro_batches: Iterable[MicroBatch], iteration: int) -> list[Part]:
        """What these micro-batches read in one step."""
        first = iteration * self.global_batch_size
        batch = range(first, first + self.global_batch_size)
        return [part_of(each, iteration, first, batch[each.samples]) for each in micro_batches]


class Stream:
    """The user's iterable, and where the job is in it, as far as this worker knows."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable
        self._positions = {0: StreamPosition()}  # by iteration, in the order of their news
        self._marks: list[StreamMark] = []

    def note(self, read: StreamBatch) -> Any:
        """Called with each part that is trained. Returns its batch."""
        self._add(read.after, read.mark)
        return read.batch

    def _add(self, position: StreamPosition, mark: StreamMark | None) -> None:
        others = [each for each in self._positions.values() if each.iteration not in (0, position.iteration)]
        newest = [*others, position][-_KEPT:]
        self._positions = {0: StreamPosition()} | {each.iteration: each for each in newest}
        if mark is not None and mark not in self._marks:
            self._marks = [*self._marks, mark][-_KEPT:]

    def position(self, iteration: int) -> StreamPosition:
        return self._positions[iteration]

    def place(self, iteration: int) -> StreamPlace:
        """Its mark is one that a step before this iteration has passed, so that its samples are in the checksum."""
        position = self.position(iteration)
        usable = [each for each in self._marks if each.position.iteration < iteration]
        is_near = bool(usable) and usable[-1].position.epoch == position.epoch
        return StreamPlace(position=position, mark=usable[-1] if is_near else None)

    def state(self, iteration: int) -> dict[str, Any]:
        """The place as a part of the job's state: numbers, and what the stream said."""
        place = self.place(iteration)
        mark = place.mark
        return {
            "position": asdict(place.position),
            "mark": None if mark is None else {"position": asdict(mark.position), "state": decode_value(mark.state)},
        }

    def tell(self, store: RendezvousStore, iteration: int) -> None:
        """A worker that joins first comes to about where this one is: the others need not wait for it."""
        store.set(_PLACE, encode_value(self.state(iteration)))

    def told(self, store: RendezvousStore) -> StreamPlace:
        """Resume at the place that a training worker has told. Returns this place."""
        return self.resume(decode_value(store.get(_PLACE)))

    def resume(self, state: Mapping[str, Any]) -> StreamPlace:
        """Resume from the state of the job. Returns the place that is then this worker's."""
        mark = state["mark"]
        place = StreamPlace(
            position=StreamPosition(**state["position"]),
            mark=mark and StreamMark(position=StreamPosition(**mark["position"]), state=encode_value(mark["state"])),
        )
        self._positions, self._marks = {}, []
        self._add(place.position, place.mark)
        return place


_MAX_WINDOW = 1 << 20  # samples; permutations of many windows are cached

_WHAT_IS_NEEDED = (
    "init_dataset() must return a map-style data set with a length, or a streamed one: partition_sizes and "
    "read_partition(partition, start), or an iterable whose __iter__ begins anew in each call"
)


class Streamed(Protocol):
    def read_partition(self, partition: int, start: int) -> Iterable[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """streamed: a data set that is read in order; None for a map-style one, which is `samples`. stream: one without a
    length, which has no partitions. draws, drop_last and begin_reading: see `LoaderSettings`."""

    partitions: Partitions
    streamed: Streamed | None = None
    samples: Any = None
    stream: Stream | None = None
    draws: SamplerDraws | None = None
    drop_last: bool = False
    begin_reading: Callable[[int], None] | None = None

    def epochs(self, global_batch_size: int) -> Epochs | None:
        """Return how steps cut the epochs, or None for a stream: an epoch of a stream ends where its samples do."""
        if self.stream is not None:
            return None
        size = self.partitions.num_samples if self.draws is None else self.draws.size
        return Epochs(size=size, global_batch_size=global_batch_size, drop_last=self.drop_last)

    def epoch_at(self, iteration: int, global_batch_size: int) -> int:
        """The epoch of the first sample of a step. Of a stream it is known for the present step and the next."""
        if self.stream is not None:
            return self.stream.position(iteration).epoch
        epochs = self.epochs(global_batch_size)
        assert epochs is not None, "only a stream has none"
        return epochs.number(iteration)

    def first_iteration(self, iteration: int, global_batch_size: int) -> int:
        """The first step that begins in the epoch of `epoch_at`."""
        if self.stream is not None:
            return -(-self.stream.position(iteration).epoch_start // global_batch_size)
        epochs = self.epochs(global_batch_size)
        assert epochs is not None, "only a stream has none"
        return epochs.iterations(epochs.number(iteration))

    def read_checksum(self, iteration: int) -> int:
        """The checksum of what a stream has given up to the end of this step; 0 for other data."""
        return 0 if self.stream is None else self.stream.position(iteration + 1).checksum

    @property
    def samples_digest(self) -> str:
        """The size and the partitions, which all workers of a job must always find equal."""
        if self.stream is not None:
            return "an unknown number of"
        digest, num_partitions = str(self.partitions.num_samples), len(self.partitions)
        if num_partitions > 1:
            digest += f" in {num_partitions} partitions #{zlib.crc32(self.partitions.sizes_P.tobytes()):08x}"
        if self.draws is not None:
            digest = f"{self.draws.size} of {digest}, drawn as #{self.draws.digest}"
        return digest


class _Iterable:
    """A streamed data set of one partition."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def read_partition(self, partition: int, start: int) -> Iterator[Any]:
        assert partition == 0
        return islice(self._iterable, start, None)


def recognize(dataset: Any) -> DataSet:
    """Raises TrainingFailed for an unsupported data set, naming what is missing."""
    if isinstance(dataset, LoaderSettings):
        loader, found = dataset, recognize(dataset.dataset)
        if found.stream is not None and loader.drop_last:
            raise TrainingFailed(
                "drop_last: the data set has no length, and its epochs follow each other without a gap, so that each "
                "batch is whole: leave drop_last out, or add __len__(), the number of samples of an epoch"
            )
        return replace(
            found,
            draws=loader.draws,
            drop_last=loader.drop_last,
            begin_reading=loader.begin_reading,
        )
    if isinstance(dataset, DataLoader):
        raise TrainingFailed(
            "init_dataset() returned a DataLoader, whose batches, sampler and settings a class cannot keep: return its "
            "data set. The class has shuffle, collate() and data_workers; a script with elasticflow.elastic() keeps a "
            "sampler"
        )
    sizes = getattr(dataset, "partition_sizes", None)
    if hasattr(dataset, "read_partition"):
        if sizes is None:
            raise TrainingFailed(
                "the data set has read_partition, but no partition_sizes: add the samples in each partition"
            )
        return DataSet(partitions=_checked(sizes), streamed=cast(Streamed, dataset))
    try:
        size = len(dataset)
    except TypeError as error:
        if not _can_be_opened_again(dataset):
            raise TrainingFailed(_WHAT_IS_NEEDED) from error
        return DataSet(partitions=Partitions([]), stream=Stream(dataset))
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return DataSet(partitions=Partitions([size]), streamed=_Iterable(dataset))
    partitions = Partitions([size]) if sizes is None else _checked(sizes)
    if partitions.num_samples != size:
        raise TrainingFailed(
            f"partition_sizes: {partitions.num_samples} samples in all, but len() of the data set is {size}: "
            "correct one of them"
        )
    return DataSet(partitions=partitions, samples=dataset)


def require_same_samples(are_same: bool) -> None:
    """are_same: whether all workers read the same of a stream. Raises TrainingFailed."""
    if not are_same:
        raise TrainingFailed(OTHER_SAMPLES)


def _can_be_opened_again(dataset: Any) -> bool:
    """A generator, for example, cannot."""
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__next__"))


def _checked(sizes: Sequence[int]) -> Partitions:
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise TrainingFailed("partition_sizes: must be whole numbers, the samples in each partition")
    return Partitions(sizes)


def sample_order(dataset: DataSet, function: TrainingFunction, spec: JobSpec) -> Order | StreamOrder:
    """The order in which the job reads its data set, fixed for the job's life."""
    epochs, size = dataset.epochs(spec.global_batch_size), dataset.partitions.num_samples
    if epochs is None:
        return StreamOrder(seed=spec.seed, global_batch_size=spec.global_batch_size)
    if spec.global_batch_size > epochs.size:
        whose = "data set's" if dataset.draws is None else "sampler's"
        if not epochs.size:
            raise TrainingFailed("the data set has no samples: its length, or that of its sampler, is 0")
        raise TrainingFailed(
            f"global_batch_size: {spec.global_batch_size} is more than the {whose} {epochs.size} samples; lower it"
        )
    if dataset.draws is not None:
        return DrawnOrder(seed=spec.seed, epochs=epochs, draw=dataset.draws)
    if not 1 <= function.shuffle_window <= _MAX_WINDOW:
        raise TrainingFailed(f"shuffle_window: must be from 1 to {_MAX_WINDOW} samples, not {function.shuffle_window}")
    num_lanes = min(function.virtual_nodes or default_count(spec.global_batch_size), len(dataset.partitions))
    window_size = max(function.shuffle_window // num_lanes, 1)
    if not function.shuffle:
        num_lanes, window_size = 1, spec.global_batch_size
    elif dataset.streamed is None and len(dataset.partitions) == 1:
        window_size = size
    return SampleOrder(
        seed=spec.seed,
        partitions=dataset.partitions,
        global_batch_size=spec.global_batch_size,
        num_lanes=num_lanes,
        window_size=window_size,
        is_shuffled=function.shuffle,
        drop_last=dataset.drop_last,
    )
