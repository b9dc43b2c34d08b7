"""Streams: data sets without a length. Sample k of a stream has one place, in global batch k // B, for any workers.

Its epochs follow each other without a gap, as those of other data do, but where one ends shows only when it is read. So
the position of a job in a stream is more than its iteration, and is a part of the job's state. Its checksum finds a
stream that gives other samples to another worker, or after a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from elasticflow.services.executor.worker.data.sample_order import Part, part_of
from elasticflow.services.executor.worker.data.virtual_nodes import MicroBatch
from elasticflow.services.executor.worker.group.compatibility_digest import decode_value, encode_value
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore

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
