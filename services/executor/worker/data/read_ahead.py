"""Reads the batches of coming steps, and copies them to the device, while the present step computes.

Reading may draw random numbers, for example to augment, from the same generators as training; all threads of a process
share them. A reading thread would change the bits of the training, so processes read (decision record 0019). The result
does not depend on them: if a process fails, the worker reads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import structlog
import torch

from elasticflow.services.executor.worker.data.device_copies import DeviceCopies
from elasticflow.services.executor.worker.data.loader_settings import keep_worker_info
from elasticflow.services.executor.worker.data.reader_process import NotRead, ReaderProcess, ReadPart
from elasticflow.services.executor.worker.data.sample_order import Order, Part
from elasticflow.services.executor.worker.data.sample_readers import Reader
from elasticflow.services.executor.worker.data.stream_reader import checksum_of
from elasticflow.services.executor.worker.data.streams import OTHER_SAMPLES, Stream, StreamOrder, StreamPlace
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.steps.random_seeds import keep_generators
from elasticflow.services.executor.worker.steps.training_function import TrainingFailed
from elasticflow.services.executor.worker.steps.virtual_nodes import MicroBatch

_READ_TIMEOUT_S = 60.0  # for one part: a forked process may hang, e.g. in a lock that a thread had held
_BATCH_TIMEOUT_S = 600.0  # for a whole batch of a stream, by a process that does not hang
_SECOND_READING_TIMEOUT_S = 60.0

CHANGING_SAMPLES = (
    "the data set gave other values when the same samples were read again. Which process reads a sample, and how "
    "often, depends on the number of workers. Let the result of __getitem__() and of the collate function follow from "
    "the index, with random numbers of torch, numpy or random, which the job seeds for each part of a batch. Keep no "
    "counter, no generator with a seed of its own and no changed sample"
)

log = structlog.get_logger()


class ReadAhead:
    """num_processes: 0 reads nothing ahead. stream: what `read` reads, if it has no length. begin_reading: called once
    in each process that reads, with its number."""

    def __init__(
        self,
        read: Reader,
        order: Order | StreamOrder,
        *,
        stream: Stream | None = None,
        num_processes: int,
        device: torch.device,
        cpu_throttle: CpuThrottle,
        begin_reading: Callable[[int], None] | None = None,
    ) -> None:
        self._read = read
        self._order = order
        self._copies = DeviceCopies(device)
        self._cpu_throttle = cpu_throttle
        self._pending: dict[Part, Future[ReadPart]] = {}
        self._begin_here = begin_reading
        self._stream = stream
        self._second_reading: SecondReading | None = None
        self._timeout_s = _READ_TIMEOUT_S
        self._is_checked = False  # whether the stream can begin another epoch
        self._processes = [
            ReaderProcess(
                read,
                begin=partial(begin_reading, number) if begin_reading else None,
                pin_memory=device.type == "cuda",
                on_arrival=self._copies.begin,
            )
            for number in range(num_processes)
        ]

    def prepare(self, micro_batches: Sequence[MicroBatch], iteration: int) -> None:
        """Begin to read for a worker that joins at about this step."""
        self._request(self._due(micro_batches, iteration))

    def take(
        self,
        micro_batches: Sequence[MicroBatch],
        iteration: int,
        next_micro_batches: Sequence[MicroBatch] = (),
    ) -> list[Any]:
        """The batches of one step, on the device, each for one use: training may change it in place.

        next_micro_batches: those of the next step if the worker may switch generations before it.
        """
        due = self._due(micro_batches, iteration)
        self._request([*due, *(self._order.parts(next_micro_batches, iteration + 1) if self._processes else [])])
        batches = [self._copies.finish(self._batch(part)) for part in due[: len(micro_batches)]]
        if self._stream is None:
            return batches
        batches = list(map(self._stream.note, batches))
        self._check(self._stream, iteration)
        return batches

    def _due(self, micro_batches: Sequence[MicroBatch], iteration: int) -> list[Part]:
        """In this step and in the next, or in as many as keep all processes busy."""
        ahead = -(-len(self._processes) // len(micro_batches))
        steps = range(iteration, iteration + ahead + 1)
        return [part for step in steps for part in self._order.parts(micro_batches, step)]

    def _request(self, parts: Sequence[Part]) -> None:
        """Begin to read these, in this order; forget all others."""
        self._pending = {part: self._pending[part] for part in parts if part in self._pending}
        new = dict.fromkeys(part for part in parts if part not in self._pending)
        for index, process in enumerate(self._processes):
            theirs = [part for part in new if self._read.process_key(part) % len(self._processes) == index]
            if theirs:
                self._pending.update(zip(theirs, process.read(theirs), strict=True))

    def begin_at(self, place: StreamPlace, on_progress: Callable[[], None]) -> None:
        """Come to a place in the stream, which may take long. Raises TrainingFailed if its samples differ."""
        while not self._has_reached(place):
            on_progress()

    def _has_reached(self, place: StreamPlace) -> bool:
        if self._processes:
            try:
                return self._copies.finish(self._arrived(self._processes[0].read([place])[0]).batch)
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
        return self._read(place)

    def require_same_samples(self, micro_batches: Sequence[MicroBatch]) -> None:
        """After the first step: read a stream's first batch again, in another process, or some samples of a data set
        twice more. Raises TrainingFailed."""
        if self._stream is None:
            part = self._order.parts(micro_batches, 0)[0]
            first, second = (checksum_of(self._copies.finish(self._read_again(part)), 0) for _ in range(2))
            if first != second:
                raise TrainingFailed(CHANGING_SAMPLES)
        elif self._processes:
            reading = SecondReading(self._read, self._stream.place(1))
            reading.is_over(_SECOND_READING_TIMEOUT_S)
            reading.close()

    def _read_again(self, part: Part) -> Any:
        if self._processes:
            try:
                return self._arrived(self._processes[0].read([part])[0]).batch
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
        return self._copies.begin(self._read(part))

    def _check(self, stream: Stream, iteration: int) -> None:
        """When the first epoch ends here: whether another process, as of a worker that joins, begins the next alike."""
        if self._second_reading is not None and self._second_reading.is_over():
            self._second_reading = None
        begins = stream.position(iteration + 1).epoch > stream.position(iteration).epoch
        if begins and self._processes and not self._is_checked:
            self._is_checked = True
            self._second_reading = SecondReading(self._read, stream.place(iteration + 1))

    def close(self) -> None:
        """End the processes, and forget what they have read."""
        for process in self._processes:
            process.close()
        if self._second_reading is not None:
            self._second_reading.close()
        self._processes, self._pending, self._second_reading = [], {}, None

    def _batch(self, part: Part) -> Any:
        """As `DeviceCopies.begin` returns it."""
        if (future := self._pending.pop(part, None)) is not None:
            try:
                arrived = self._arrived(future)
            except (NotRead, TimeoutError) as why:
                self._fall_back(why)
            else:
                self._cpu_throttle.charge(arrived.cpu_s)
                return arrived.batch
        if self._stream is not None:  # where the process has been
            while not self._read(self._stream.place(part.iteration)):
                pass
        if self._begin_here is not None:
            with keep_generators(), keep_worker_info():
                self._begin_here(0)
            self._begin_here = None
        return self._copies.begin(self._read(part))

    def _arrived(self, future: Future[ReadPart]) -> ReadPart:
        arrived = future.result(self._timeout_s)
        if self._stream is not None:
            self._timeout_s = _BATCH_TIMEOUT_S
        return arrived

    def _fall_back(self, why: Exception) -> None:
        """From now on the worker reads. If the data set itself fails, so does the worker."""
        log.warning("reading_ahead_ended", reason=str(why) or type(why).__name__)
        self.close()


class SecondReading:
    """Reads a stream up to a place once more, from its beginning there, in a process of its own.

    read: not used so far in this process, as in that of a worker that joins.
    """

    def __init__(self, read: Reader, place: StreamPlace) -> None:
        self._place = StreamPlace(position=place.position)
        self._process = ReaderProcess(read, pin_memory=False, on_arrival=lambda reached: reached)
        self._reached = self._process.read([self._place])[0]

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Raises TrainingFailed if it has found other samples."""
        try:
            if not self._reached.result(wait_s).batch:
                self._reached = self._process.read([self._place])[0]
                return False
        except TimeoutError:
            return False
        except NotRead as why:
            if OTHER_SAMPLES in str(why):
                raise TrainingFailed(OTHER_SAMPLES) from None
            log.warning("stream_not_read_again", reason=str(why))
        self.close()
        return True

    def close(self) -> None:
        self._process.close()
